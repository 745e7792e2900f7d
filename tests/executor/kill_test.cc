// kill -9 of a rank: every living rank of pp 2 x dp 2 ends within seconds with an error that names
// the rank that was killed. Ranks are processes over Gloo that nobody supervises.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <regex>
#include <sstream>
#include <string>

#include "tests/support/shell/shell.h"

namespace pipewright::tests {
namespace {

constexpr int kRanks = 4;

int free_port() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  bind(listener, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  close(listener);
  return ntohs(address.sin_port);
}

long long time_after(const std::string& text, const std::string& word) {
  std::smatch found;
  const std::regex pattern(word + " ([0-9]+)\n");
  return std::regex_search(text, found, pattern) ? std::stoll(found[1]) : -1;
}

void expect_named_errors(const std::string& kind, int victim, int step, const std::string& wrap) {
  SCOPED_TRACE(kind + " of rank " + std::to_string(victim) + ", step " + std::to_string(step) +
               ", " + wrap);
  // `wait` returns once every rank has ended.
  std::ostringstream command;
  command
      << "export WORLD_SIZE=" << kRanks << " MASTER_ADDR=127.0.0.1 MASTER_PORT=" << free_port()
      << " OMP_NUM_THREADS=1; d=$(mktemp -d); for r in 0 1 2 3; do RANK=$r LOCAL_RANK=$r timeout "
         "-s KILL 100 tests/executor/kill_worker "
      << kind << ' ' << victim << ' ' << step << ' ' << wrap
      << " > $d/$r 2>&1 & done; wait; for r in 0 1 2 3; do echo \"=== $r\"; cat $d/$r; done; "
         "rm -r $d";
  const std::string text = run_shell(command.str()).text;
  const long long killed = time_after(text, "killed");
  ASSERT_GT(killed, 0) << text;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == victim) continue;
    const size_t begin = text.find("=== " + std::to_string(rank) + "\n");
    const std::string own = text.substr(begin, text.find("\n=== ", begin) - begin);
    const long long ended = time_after(own, "ended");
    ASSERT_GT(ended, 0) << text;
    EXPECT_LE(ended - killed, 5000) << text;
    const std::string named = "rank " + std::to_string(victim) + ": pp " +
                              std::to_string(victim / 2) + ", dp " + std::to_string(victim % 2);
    const std::string host_of_store = "rank 0, which hosts the store, has ended";
    EXPECT_NE(own.find(victim == 0 ? host_of_store : named), std::string::npos) << text;
    EXPECT_NE(own.find("has ended, or its host is unreachable"), std::string::npos) << text;
  }
}

// Every kind of action, both in the first and in a later step, every rank, both wrappers.
TEST(Kill, EveryLivingRankNamesTheKilledOne) {
  expect_named_errors("F", 3, 0, "replicate");
  expect_named_errors("B", 1, 1, "shard");
  expect_named_errors("I", 2, 0, "shard");
  expect_named_errors("W", 0, 1, "replicate");
  expect_named_errors("SEND_F", 0, 0, "shard");
  expect_named_errors("RECV_F", 3, 1, "shard");
  expect_named_errors("SEND_B", 2, 0, "replicate");
  expect_named_errors("RECV_B", 2, 1, "replicate");
  expect_named_errors("UNSHARD", 3, 0, "shard");
  expect_named_errors("RESHARD", 1, 1, "shard");
  expect_named_errors("REDUCE_GRAD", 1, 1, "replicate");
}

// All combinations: 176 runs of about 3 s. Runs only as kill_grid_test.
TEST(Kill, DISABLED_AllCombinations) {
  for (const char* kind : {"F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD",
                           "RESHARD", "REDUCE_GRAD"}) {
    for (int victim = 0; victim < kRanks; ++victim) {
      for (const int step : {0, 1}) {
        for (const char* wrap : {"replicate", "shard"})
          expect_named_errors(kind, victim, step, wrap);
      }
    }
  }
}

}  // namespace
}  // namespace pipewright::tests
