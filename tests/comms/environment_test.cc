#include "pipewright/comms/environment.h"

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

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
  std::map<std::string, std::string> set = {{"SLURM_PROCID", "6"},
                                            {"SLURM_NTASKS", "8"},
                                            {"SLURM_LOCALID", "2"},
                                            {"SLURM_JOB_ID", "123456"},
                                            {"SLURM_JOB_NODELIST", "gpu[03-05,9],x1"}};
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
}

TEST(Environment, FirstHostOfSlurmNodeList) {
  const auto host = [](const std::string& list) {
    return read({{"SLURM_PROCID", "0"},
                 {"SLURM_NTASKS", "2"},
                 {"SLURM_LOCALID", "0"},
                 {"SLURM_JOB_ID", "1"},
                 {"SLURM_STEP_NODELIST", list}})
        .master_addr;
  };
  EXPECT_EQ(host("a"), "a");
  EXPECT_EQ(host("a,b"), "a");
  EXPECT_EQ(host("rack1-n[007]"), "rack1-n007");
  EXPECT_EQ(host("n[1,4]"), "n1");
  EXPECT_EQ(host("n[1-4]-ib,m2"), "n1-ib");
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
                      {"SLURM_JOB_ID", "1"},
                      {"SLURM_JOB_NODELIST", "n[1"}}),
            "environment variable SLURM_JOB_NODELIST is invalid: expected a list of hosts such as "
            "node[1-4], got `n[1`");
}

}  // namespace
}  // namespace pipewright::comms
