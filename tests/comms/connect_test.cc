// Ranks that are processes connect by the variables of their launchers, or end with the error of
// the rank that cannot, long before the time limit of 10 minutes. Nobody supervises them.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/support/shell/free_port.h"
#include "tests/support/shell/shell.h"

namespace pipewright::tests {
namespace {

// `variables` are those of each rank, as the shell has them. Ends ranks that stay, after a minute.
std::vector<std::string> connect(const std::vector<std::string>& variables, int port = 0) {
  std::string command = "export MASTER_PORT=" + std::to_string(port ? port : free_port()) +
                        " TORCH_CPP_LOG_LEVEL=ERROR; d=$(mktemp -d); ";
  for (size_t rank = 0; rank < variables.size(); ++rank) {
    command += "(" + variables[rank] +
               " exec timeout -s KILL 60 tests/comms/connect_worker 600) > $d/" +
               std::to_string(rank) + " 2>/dev/null & ";
  }
  command += "wait; for f in $d/*; do cat $f; echo ===; done; rm -r $d";
  const std::string text = run_shell(command).text;
  std::vector<std::string> outputs;
  for (size_t begin = 0, end; (end = text.find("===\n", begin)) != std::string::npos;
       begin = end + 4)
    outputs.push_back(text.substr(begin, end - begin));
  return outputs;
}

std::string torchrun(int rank, int size, const std::string& more = "") {
  return "export RANK=" + std::to_string(rank) + " WORLD_SIZE=" + std::to_string(size) +
         " MASTER_ADDR=127.0.0.1 " + more + ";";
}

std::string open_mpi(int rank, int size) {
  return "export MASTER_ADDR=localhost OMPI_COMM_WORLD_RANK=" + std::to_string(rank) +
         " OMPI_COMM_WORLD_SIZE=" + std::to_string(size) + ";";
}

std::string mpich(int rank, int size) {
  return "export MASTER_ADDR=localhost PMI_RANK=" + std::to_string(rank) +
         " PMI_SIZE=" + std::to_string(size) + ";";
}

// Every rank's output has that.
void expect_all(const std::vector<std::string>& outputs, size_t ranks, const std::string& text) {
  ASSERT_EQ(outputs.size(), ranks);
  for (const std::string& output : outputs)
    EXPECT_NE(output.find(text), std::string::npos) << output;
}

TEST(Connect, ByMpirunsVariables) {
  expect_all(connect({open_mpi(0, 3), open_mpi(1, 3), open_mpi(2, 3)}), 3, "connected, sum 3\n");
  expect_all(connect({mpich(0, 2), mpich(1, 2)}), 2, "connected, sum 1\n");
}

TEST(Connect, ABatchScriptOfSeveralTasksDoesNotWaitForThem) {
  expect_all(connect({"export SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_LOCALID=0 SLURM_JOB_ID=1 "
                      "SLURM_JOB_NODELIST=$(uname -n);"}),
             1, "error: environment variable SLURM_NTASKS is `8`, but srun has not started");
}

constexpr const char* kNoInterface =
    "environment variable GLOO_SOCKET_IFNAME is invalid: expected a network interface of host ";

// Whichever rank has no such interface, also if others connect much later.
TEST(Connect, ARankWithoutTheInterfaceEndsTheOthers) {
  for (int victim = 0; victim < 3; ++victim) {
    for (const bool late : {false, true}) {
      SCOPED_TRACE(std::to_string(victim) + (late ? ", late" : ""));
      std::vector<std::string> variables;
      for (int rank = 0; rank < 3; ++rank) {
        variables.push_back(torchrun(rank, 3, rank == victim ? "GLOO_SOCKET_IFNAME=nowhere9" : ""));
        if (late && rank == (victim + 1) % 3 && rank > 0) variables.back() += "sleep 2;";
      }
      const auto outputs = connect(variables);
      expect_all(outputs, 3, kNoInterface);
      expect_all(outputs, 3, "got `nowhere9`");
      for (int rank = 0; rank < 3; ++rank) {
        const std::string& output = outputs[static_cast<size_t>(rank)];
        const std::string named = "rank " + std::to_string(victim) + ": " + kNoInterface;
        EXPECT_EQ(output.find(named) != std::string::npos, rank != victim) << output;
      }
    }
  }
}

TEST(Connect, AnEmptyInterfaceIsNone) {
  const std::string empty = "GLOO_SOCKET_IFNAME=";
  expect_all(connect({torchrun(0, 2, empty), torchrun(1, 2, empty)}), 2, "connected");
}

// An address for documentation, and a name that no host has: RFC 5737 and RFC 2606.
TEST(Connect, AMasterAddressThatIsNotRank0s) {
  for (const char* address : {"198.51.100.1", "no.such.host.invalid"}) {
    const std::string wrong = std::string("MASTER_ADDR=") + address;
    const std::string expected =
        "environment variable MASTER_ADDR is invalid: expected the host of rank 0, ";
    // The others know the right address, or none of them does.
    for (const std::string& others : {std::string(), wrong}) {
      SCOPED_TRACE(wrong + ", others: " + others);
      const auto outputs =
          connect({torchrun(0, 3, wrong), torchrun(1, 3, others), torchrun(2, 3, others)});
      expect_all(outputs, 3, expected);
      expect_all(outputs, 3, "127.0.0.1");
      expect_all(outputs, 3, std::string("got `") + address + "` (");
      EXPECT_EQ(outputs[0].find("error: " + expected), 0U) << outputs[0];
      EXPECT_EQ(outputs[1].find("error: rank 0: " + expected), 0U) << outputs[1];
    }
  }
}

// The names and addresses of a host that need not be in any list of its interfaces.
TEST(Connect, AnyAddressOfRank0) {
  for (const char* address : {"127.1.2.3", "localhost", "$(uname -n)"}) {
    const std::string more = std::string("GLOO_SOCKET_IFNAME=lo MASTER_ADDR=") + address;
    SCOPED_TRACE(more);
    expect_all(connect({torchrun(0, 2, more), torchrun(1, 2, more)}), 2, "connected, sum 1\n");
  }
}

}  // namespace
}  // namespace pipewright::tests
