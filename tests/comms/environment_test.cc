#include "pipewright/comms/process/environment.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <string>

namespace pipewright::comms {
namespace {

Environment read(const std::map<std::string, std::string>& set) {
  return read_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = set.find(name);
    return found == set.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string error_of(const std::map<std::string, std::string>& set) {
  try {
    read(set);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Environment, OneProcessIfNothingIsSet) {
  const Environment alone = read({});
  EXPECT_EQ(alone.rank, 0);
  EXPECT_EQ(alone.world_size, 1);
  EXPECT_EQ(alone.local_rank, 0);
}

TEST(Environment, Torchrun) {
  const Environment rank = read({{"RANK", "5"},
                                 {"WORLD_SIZE", "8"},
                                 {"LOCAL_RANK", "1"},
                                 {"MASTER_ADDR", "node7"},
                                 {"MASTER_PORT", "29500"},
                                 {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_EQ(rank.rank, 5);
  EXPECT_EQ(rank.world_size, 8);
  EXPECT_EQ(rank.local_rank, 1);
  EXPECT_EQ(rank.master_addr, "node7");
  EXPECT_EQ(rank.master_port, 29500);
  EXPECT_TRUE(rank.agent_has_store);
}

TEST(Environment, TorchrunOverridesSlurm) {
  const Environment rank =
      read({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}});
  EXPECT_EQ(rank.rank, 0);
  EXPECT_EQ(rank.world_size, 1);
}

TEST(Environment, Slurm) {
  std::map<std::string, std::string> set = {
      {"SLURM_PROCID", "6"},      {"SLURM_NTASKS", "8"},
      {"SLURM_LOCALID", "2"},     {"SLURM_STEP_NUM_TASKS", "8"},
      {"SLURM_JOB_ID", "123456"}, {"SLURM_JOB_NODELIST", "gpu[03-05,9],x1"}};
  const Environment rank = read(set);
  EXPECT_EQ(rank.rank, 6);
  EXPECT_EQ(rank.world_size, 8);
  EXPECT_EQ(rank.local_rank, 2);
  EXPECT_EQ(rank.master_addr, "gpu03");
  EXPECT_EQ(rank.master_port, 23456);
  // The port is the same on all ranks and differs between steps of a job.
  set["SLURM_PROCID"] = "0";
  EXPECT_EQ(read(set).master_port, 23456);
  set["SLURM_STEP_ID"] = "1";
  EXPECT_NE(read(set).master_port, 23456);
  set["MASTER_PORT"] = "4000";
  EXPECT_EQ(read(set).master_port, 4000);
  set["MASTER_ADDR"] = "gpu05";
  EXPECT_EQ(read(set).master_addr, "gpu05");
}

// What `scontrol show hostnames` of Slurm 22.05 prints first. It has no hosts with a text after the
// brackets before a comma or the end; other versions do.
TEST(Environment, FirstHostOfSlurmNodeList) {
  const std::map<std::string, std::string> first = {{"a", "a"},
                                                    {"a,b", "a"},
                                                    {"n1-3", "n1-3"},
                                                    {"rack1-n[007]", "rack1-n007"},
                                                    {"n[1,4]", "n1"},
                                                    {"n[08-11]", "n08"},
                                                    {"n[0-1]", "n0"},
                                                    {"a[2,1]", "a2"},
                                                    {"a[1,3-5,09]", "a1"},
                                                    {"rack[1-2]n[3-4]", "rack1n3"},
                                                    {"r[1-2][3-4]", "r13"},
                                                    {"a[1-2]b[3-4]c[5-6]", "a1b3c5"},
                                                    {"n[1-2]-[3-4]", "n1-3"},
                                                    {"a[2,1]b[4,3]", "a2b4"},
                                                    {"r[1-2],s[3]t[4-5]", "r1"},
                                                    {"r1n[01-02],r1n[04],r2", "r1n01"},
                                                    {"s[3]t[4-5],r[1-2]", "s3t4"},
                                                    {",a,b", "a"},
                                                    {" a b", "a"},
                                                    {"n[1-4]-ib,m2", "n1-ib"},
                                                    {"rack[1-2]n[03,4]-ib.x,m2", "rack1n03-ib.x"}};
  for (const auto& [list, host] : first) EXPECT_EQ(first_host(list), host) << list;
  for (const char* bad : {"", ",", "n[", "n[1", "n[1-2", "n[]", "n[,1]", "n[-1]", "n[a]", "n[1x2]",
                          "n[[1-2]]", "n]1", "a[1]]", "n[1-2]m[3", "n[1-2]m[x]"})
    EXPECT_EQ(first_host(bad), "") << bad;
}

// What srun, sbatch and salloc of Slurm 22.05 set.
using Set = std::map<std::string, std::string>;
const Set kBatch = {{"SLURM_PROCID", "0"},
                    {"SLURM_LOCALID", "0"},
                    {"SLURM_JOB_ID", "7"},
                    {"SLURM_JOB_NUM_NODES", "2"},
                    {"SLURM_JOB_NODELIST", "rack[1-2]n[3-4]"}};

Set with(Set set, const Set& more) {
  for (const auto& [name, value] : more) set[name] = value;
  return set;
}

TEST(Environment, ABatchScriptOfSeveralTasksIsRefused) {
  const std::string help =
      "): start the program with `srun`, or set RANK=0 and WORLD_SIZE=1 for a job of one process";
  EXPECT_EQ(error_of(with(kBatch, {{"SLURM_NTASKS", "8"}})),
            "environment variable SLURM_NTASKS is `8`, but srun has not started this process as "
            "one of them (SLURM_STEP_NUM_TASKS is not set" +
                help);
  // Without --ntasks, srun starts one task per node.
  EXPECT_EQ(error_of(kBatch),
            "environment variable SLURM_JOB_NUM_NODES is `2`, but srun has not started this "
            "process as one of them (SLURM_STEP_NUM_TASKS is not set" +
                help);
  // The shell of salloc, or a script that was submitted by a process of a step.
  EXPECT_EQ(error_of(with(kBatch, {{"SLURM_NTASKS", "4"},
                                   {"SLURM_STEP_ID", "4294967290"},
                                   {"SLURM_STEP_NODELIST", "rack1n3"},
                                   {"SLURM_STEP_NUM_TASKS", "1"}})),
            "environment variable SLURM_NTASKS is `4`, but srun has not started this process as "
            "one of them (SLURM_STEP_NUM_TASKS is `1`" +
                help);
  EXPECT_EQ(error_of({{"SLURM_PROCID", "0"}}),
            "environment variable SLURM_NTASKS is not set: expected a number of ranks from 1 to "
            "1048576");
}

TEST(Environment, ABatchScriptOfOneTaskIsOneProcess) {
  const Set one_node = with(kBatch, {{"SLURM_JOB_NUM_NODES", "1"}});
  for (const Set& set :
       {one_node, with(one_node, {{"SLURM_NTASKS", "1"}}), with(kBatch, {{"SLURM_NTASKS", "1"}}),
        with(kBatch,
             {{"SLURM_NTASKS", "1"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}),
        with(kBatch, {{"SLURM_NTASKS", "8"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}})}) {
    EXPECT_EQ(read(set).world_size, 1);
    EXPECT_EQ(read(set).rank, 0);
  }
  // Outside of a task, as in the shell of salloc on the login node, Slurm starts nothing.
  EXPECT_EQ(read({{"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "7"}}).world_size, 1);
}

// srun --preserve-env leaves SLURM_NTASKS as it was.
TEST(Environment, TheStepTellsTheNumberOfRanks) {
  const Environment rank = read(with(kBatch, {{"SLURM_PROCID", "1"},
                                              {"SLURM_NTASKS", "4"},
                                              {"SLURM_STEP_ID", "0"},
                                              {"SLURM_STEP_NODELIST", "rack[1-2]n[3-4]"},
                                              {"SLURM_STEP_NUM_TASKS", "2"}}));
  EXPECT_EQ(rank.rank, 1);
  EXPECT_EQ(rank.world_size, 2);
  EXPECT_EQ(rank.master_addr, "rack1n3");
  EXPECT_EQ(rank.master_variable, "SLURM_STEP_NODELIST");
}

const Set kMaster = {{"MASTER_ADDR", "node7"}, {"MASTER_PORT", "29500"}};
const Set kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                      {"OMPI_COMM_WORLD_SIZE", "4"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                      {"PMIX_RANK", "3"}};
const Set kMpich = {
    {"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Set kMvapich = {{"MV2_COMM_WORLD_RANK", "3"},
                      {"MV2_COMM_WORLD_SIZE", "4"},
                      {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
                      {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}};
const Set kCray = {
    {"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"PMI_LOCAL_RANK", "1"}, {"PMI_LOCAL_SIZE", "2"}};

void expect_rank_3_of_4(const Set& set) {
  const Environment rank = read(set);
  EXPECT_EQ(rank.rank, 3);
  EXPECT_EQ(rank.world_size, 4);
  EXPECT_EQ(rank.local_rank, 1);
  EXPECT_EQ(rank.master_addr, "node7");
  EXPECT_EQ(rank.master_port, 29500);
}

TEST(Environment, Mpi) {
  for (const Set& set : {kOpenMpi, kMpich, kMvapich, kCray}) {
    expect_rank_3_of_4(with(set, kMaster));
    const std::string error = error_of(set);
    const std::string expected =
        "environment variable MASTER_ADDR is not set: expected the host of rank 0, because ";
    EXPECT_EQ(error.find(expected), 0U) << error;
    EXPECT_NE(error.find("_SIZE is `4`; pass MASTER_ADDR and MASTER_PORT to all processes, for "
                         "example with `mpi"),
              std::string::npos)
        << error;
    EXPECT_EQ(error_of(with(set, {{"MASTER_ADDR", "node7"}})),
              "environment variable MASTER_PORT is not set: expected a port from 1 to 65535");
    EXPECT_EQ(error_of(with(set, {{"MASTER_ADDR", ""}, {"MASTER_PORT", "1"}}))
                  .find("environment variable MASTER_ADDR is invalid: expected the host of rank 0"),
              0U);
    // A process on another host cannot find rank 0 there.
    for (const char* own : {"localhost", "127.0.0.1", "::1"}) {
      const std::string loopback =
          error_of(with(set, {{"MASTER_ADDR", own}, {"MASTER_PORT", "29500"}}));
      EXPECT_NE(loopback.find("MASTER_ADDR is invalid"), std::string::npos) << loopback;
      EXPECT_NE(loopback.find(" is `2`, got `" + std::string(own) + "`"), std::string::npos)
          << loopback;
    }
  }
  EXPECT_EQ(
      read(with(kMpich,
                {{"MPI_LOCALNRANKS", "4"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}}))
          .world_size,
      4);
  EXPECT_EQ(read({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).world_size, 1);
  EXPECT_EQ(error_of({{"OMPI_COMM_WORLD_RANK", "4"}, {"OMPI_COMM_WORLD_SIZE", "4"}}),
            "environment variable OMPI_COMM_WORLD_RANK is invalid: expected a rank from 0 to 3, "
            "got `4`");
}

TEST(Environment, ARankOfUnknownManyIsRefused) {
  EXPECT_EQ(error_of({{"PMI_RANK", "0"}}),
            "environment variable PMI_SIZE is not set: expected a number of ranks from 1 to "
            "1048576");
  EXPECT_EQ(error_of({{"OMPI_COMM_WORLD_SIZE", "4"}}),
            "environment variable OMPI_COMM_WORLD_RANK is not set: expected a rank from 0 to 3");
  EXPECT_EQ(error_of({{"PMIX_RANK", "2"}}),
            "environment variable PMIX_RANK is `2`, but no variable tells the number of ranks: set "
            "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT for each process");
}

const Set kTorchrun = with(kMaster, {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}});

TEST(Environment, TorchrunAndMpiMustAgree) {
  expect_rank_3_of_4(with(kTorchrun, kOpenMpi));
  EXPECT_EQ(error_of(with(with(kTorchrun, kOpenMpi), {{"RANK", "0"}})),
            "environment variables RANK and OMPI_COMM_WORLD_RANK contradict each other: got `0` "
            "and `3`");
  EXPECT_EQ(error_of(with(with(kTorchrun, kMpich), {{"RANK", "0"}, {"WORLD_SIZE", "1"}})),
            "environment variables WORLD_SIZE and PMI_SIZE contradict each other: got `1` and `4`");
  // One torchrun per host, under mpirun.
  const Set agent = {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  expect_rank_3_of_4(with(with(kTorchrun, agent), {{"LOCAL_WORLD_SIZE", "2"}}));
  // mpirun -n 1 is no parallel launcher.
  expect_rank_3_of_4(
      with(kTorchrun, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}));
}

TEST(Environment, OneOfTorchrunsVariablesMustAgreeWithTheOthers) {
  const Set mpi = with(kOpenMpi, kMaster);
  expect_rank_3_of_4(with(mpi, {{"WORLD_SIZE", "4"}}));
  expect_rank_3_of_4(with(mpi, {{"RANK", "3"}}));
  EXPECT_EQ(error_of(with(mpi, {{"RANK", "2"}})),
            "environment variables RANK and OMPI_COMM_WORLD_RANK contradict each other: got `2` "
            "and `3`");
  const Set srun = with(kBatch, {{"SLURM_NTASKS", "2"}, {"SLURM_STEP_NUM_TASKS", "2"}});
  EXPECT_EQ(read(with(srun, {{"WORLD_SIZE", "2"}})).world_size, 2);
  EXPECT_EQ(error_of(with(srun, {{"WORLD_SIZE", "8"}})),
            "environment variables WORLD_SIZE and SLURM_STEP_NUM_TASKS contradict each other: got "
            "`8` and `2`");
}

TEST(Environment, MpiLaunchersMustAgree) {
  expect_rank_3_of_4(with(with(kOpenMpi, kMpich), kMaster));
  EXPECT_EQ(error_of(with(with(kOpenMpi, kMpich), {{"PMI_RANK", "1"}})),
            "environment variables OMPI_COMM_WORLD_RANK and PMI_RANK contradict each other: got "
            "`3` and `1`");
  expect_rank_3_of_4(
      with(with(kMpich, kMaster), {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}));
}

TEST(Environment, MpiUnderSlurm) {
  // mpirun in a batch script, on the script's host and on another one, where srun has started
  // mpirun's daemon.
  const Set batch = with(kBatch, {{"SLURM_NTASKS", "4"}});
  const Set mpi = with(kOpenMpi, kMaster);
  expect_rank_3_of_4(with(batch, mpi));
  expect_rank_3_of_4(
      with(with(batch, {{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_ID", "0"}}), mpi));
  // srun --mpi=pmi2 needs no master address.
  const Set pmi2 = with(batch, {{"SLURM_PROCID", "3"},
                                {"SLURM_LOCALID", "1"},
                                {"SLURM_STEP_NUM_TASKS", "4"},
                                {"PMI_RANK", "3"},
                                {"PMI_SIZE", "4"}});
  EXPECT_EQ(read(pmi2).local_rank, 1);
  EXPECT_EQ(read(pmi2).master_addr, "rack1n3");
  // Four tasks that would each train alone.
  EXPECT_EQ(error_of(with(pmi2, {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}})),
            "environment variables PMI_SIZE and SLURM_STEP_NUM_TASKS contradict each other: got "
            "`1` and `4`");
}

TEST(Environment, ALoopbackAddressIsNoneForSeveralHosts) {
  const Set srun = with(kBatch, {{"SLURM_NTASKS", "2"},
                                 {"SLURM_STEP_NUM_TASKS", "2"},
                                 {"SLURM_STEP_NUM_NODES", "1"},
                                 {"MASTER_ADDR", "127.0.0.1"}});
  EXPECT_EQ(read(srun).master_addr, "127.0.0.1");
  EXPECT_EQ(error_of(with(srun, {{"SLURM_STEP_NUM_NODES", "2"}})),
            "environment variable MASTER_ADDR is invalid: expected the host of rank 0 by a name "
            "that all hosts know, because SLURM_STEP_NUM_NODES is `2`, got `127.0.0.1`");
}

TEST(Environment, ErrorsNameTheVariable) {
  EXPECT_EQ(
      error_of({{"RANK", "1"}}),
      "environment variable WORLD_SIZE is not set: expected a number of ranks from 1 to 1048576");
  EXPECT_EQ(error_of({{"RANK", "4"}, {"WORLD_SIZE", "4"}}),
            "environment variable RANK is invalid: expected a rank from 0 to 3, got `4`");
  EXPECT_EQ(error_of({{"RANK", "x"}, {"WORLD_SIZE", "4"}}),
            "environment variable RANK is invalid: expected a rank from 0 to 3, got `x`");
  EXPECT_EQ(error_of({{"RANK", "1"}, {"WORLD_SIZE", "4"}}),
            "environment variable MASTER_ADDR is not set: expected the host of rank 0");
  EXPECT_EQ(
      error_of({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", ""}}),
      "environment variable MASTER_PORT is invalid: expected a port from 1 to 65535, got ``");
  EXPECT_EQ(error_of({{"SLURM_PROCID", "0"},
                      {"SLURM_NTASKS", "2"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_STEP_ID", "0"},
                      {"SLURM_JOB_ID", "1"},
                      {"SLURM_JOB_NODELIST", "n[1"}}),
            "environment variable SLURM_JOB_NODELIST is invalid: expected a list of hosts such as "
            "node[1-4], got `n[1`");
}

}  // namespace
}  // namespace pipewright::comms
