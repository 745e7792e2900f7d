// Failures of processes: every living rank of pp 2 x dp 2 ends within seconds with an error that
// names the rank that was killed, that hangs, or whose connections broke. Ranks are processes over
// Gloo that nobody supervises.
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <tuple>

#include "tests/support/shell/free_port.h"
#include "tests/support/shell/shell.h"

namespace pipewright::tests {
namespace {

constexpr int kRanks = 4;

long long time_after(const std::string& text, const std::string& word) {
  std::smatch found;
  const std::regex pattern(word + " ([0-9]+)\n");
  return std::regex_search(text, found, pattern) ? std::stoll(found[1]) : -1;
}

// What the ranks print, and torchrun's error files. Ends a rank that stays when all others have
// ended, unless it only sleeps or has been cut off: then it must end itself.
std::string run_ranks(const std::string& kind, int victim, int step, const std::string& wrap,
                      const std::string& how) {
  std::ostringstream command;
  command << "export WORLD_SIZE=" << kRanks << " MASTER_ADDR=127.0.0.1 MASTER_PORT=" << free_port()
          << " OMP_NUM_THREADS=1; d=$(mktemp -d); for r in 0 1 2 3; do RANK=$r LOCAL_RANK=$r "
             "TORCHELASTIC_ERROR_FILE=$d/$r.json timeout -s KILL 100 tests/executor/kill_worker "
          << kind << ' ' << victim << ' ' << step << ' ' << wrap << ' ' << how
          << " > $d/$r 2>&1 & if [ $r = " << victim
          << " ]; then v=$!; else o=\"$o $!\"; fi; done; wait $o; "
          << (how == "sleep" || how == "cut+reset" ? "" : "sleep 0.2; pkill -9 -P $v; ")
          << "wait $v; echo \"exit $?\" >> $d/" << victim
          << "; wait; "
             "for r in 0 1 2 3; do echo \"=== $r\"; cat $d/$r; cat $d/$r.json 2>/dev/null; done; "
             "rm -r $d";
  return run_shell(command.str()).text;
}

std::string part_of(const std::string& text, int rank) {
  const size_t begin = text.find("=== " + std::to_string(rank) + "\n");
  return text.substr(begin, text.find("\n=== ", begin) - begin);
}

// The line that starts with `word`; empty if there is none.
std::string line_of(const std::string& text, const std::string& word) {
  const size_t begin = text.find("\n" + word);
  if (begin == std::string::npos) return "";
  return text.substr(begin + 1, text.find('\n', begin + 1) - begin - 1);
}

void expect_named_errors(const std::string& kind, int victim, int step, const std::string& wrap,
                         const std::string& how = "kill", int limit_ms = 5000) {
  SCOPED_TRACE(how + " at " + kind + " of rank " + std::to_string(victim) + ", step " +
               std::to_string(step) + ", " + wrap);
  const std::string text = run_ranks(kind, victim, step, wrap, how);
  const long long killed = time_after(text, "killed");
  ASSERT_GT(killed, 0) << text;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == victim) continue;
    const std::string own = part_of(text, rank);
    const long long ended = time_after(own, "ended");
    ASSERT_GT(ended, 0) << text;
    EXPECT_LE(ended - killed, limit_ms) << text;
    // Coordinates exist once the mesh does.
    const std::string named = kind == "+" ? "rank " + std::to_string(victim) + ": host "
                                          : "rank " + std::to_string(victim) + ": pp " +
                                                std::to_string(victim / 2) + ", dp " +
                                                std::to_string(victim % 2);
    const std::string host_of_store = "rank 0, which hosts the store, has ended";
    EXPECT_NE(own.find(victim == 0 ? host_of_store : named), std::string::npos) << text;
    EXPECT_NE(own.find("has ended, or its host is unreachable"), std::string::npos) << text;
    // The store that would have the ranks' reports has stopped with rank 0.
    if (how == "stop" && victim != 0) {
      EXPECT_NE(own.find("\n  culprit: rank " + std::to_string(victim) + " ("), std::string::npos)
          << text;
      EXPECT_NE(own.find("does not answer"), std::string::npos) << text;
      // What the others wait for: a transfer of the stopped rank.
      const std::regex waits(
          "`[0-9](RECV|SEND)_[FB][0-9]` waits for `[0-9](SEND|RECV)_[FB][0-9]` of rank " +
          std::to_string(victim));
      EXPECT_TRUE(std::regex_search(own, waits)) << text;
    }
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

// All others wait in the store, and no transfer is under way.
TEST(Kill, BeforeAStepEveryLivingRankNamesTheKilledOne) {
  expect_named_errors("-", 3, 0, "shard");
  expect_named_errors("-", 2, 1, "replicate");
  expect_named_errors("-", 0, 1, "shard");
}

// All others create their groups with it, or wait for those that do.
TEST(Kill, BeforeItsGroupsEveryLivingRankNamesTheKilledOne) {
  for (const int victim : {0, 1, 2, 3}) expect_named_errors("+", victim, 0, "shard");
}

// The connection that broke first, by which alone rank 0 notices the end of a process then, is
// there again after reset().
TEST(Kill, AfterAResetEveryLivingRankNamesTheKilledOne) {
  expect_named_errors("SEND_B", 3, 1, "replicate", "cut+kill");
  expect_named_errors("REDUCE_GRAD", 2, 0, "shard", "cut+kill");
}

// A rank that hangs, or whose host does, is named when the time limit of 4 s is over.
TEST(Stop, EveryOtherRankNamesTheStoppedOne) {
  expect_named_errors("F", 3, 1, "replicate", "stop", 4000 + 5000);
  expect_named_errors("RECV_B", 1, 0, "shard", "stop", 4000 + 5000);
  // The host of the store, which then does not answer.
  expect_named_errors("B", 0, 1, "replicate", "stop", 4000 + 5000);
  expect_named_errors("SEND_F", 0, 0, "shard", "stop", 4000 + 5000);
}

// A rank whose stage never ends: its own process reports that, too, and ends with the exit code
// that its trainer chose.
TEST(Sleep, EveryRankNamesTheAction) {
  for (const auto& [kind, action] :
       {std::pair("F", "`1F0`"), std::pair("REDUCE_GRAD", "REDUCE_GRAD`")}) {
    const int victim = 3;
    const std::string text = run_ranks(kind, victim, 1, "shard", "sleep");
    const long long slept = time_after(text, "killed");
    ASSERT_GT(slept, 0) << text;
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::string own = part_of(text, rank);
      const long long ended = time_after(own, "ended");
      ASSERT_GT(ended, 0) << text;
      EXPECT_LE(ended - slept, 4000 + 5000) << text;
      const std::regex culprit(
          "\n  culprit: rank 3 \\(pp 1, dp 1, host .*: step 1, action [0-9]+ .*" +
          std::string(action) + " has not ended");
      EXPECT_TRUE(std::regex_search(own, culprit)) << text;
      EXPECT_NE(own.find("{\"message\":"), std::string::npos) << text;
    }
    EXPECT_NE(part_of(text, victim).find("exit 3\n"), std::string::npos) << text;
  }
}

// All ranks live, and all report the same broken connection of rank 2: to rank 0, or in the
// reduction over ranks 2 and 3.
TEST(Cut, EveryRankNamesTheConnection) {
  const std::string text = run_ranks("SEND_B", 2, 1, "replicate", "cut");
  const long long killed = time_after(text, "killed");
  ASSERT_GT(killed, 0) << text;
  std::string first;
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::string own = part_of(text, rank);
    const long long ended = time_after(own, "ended");
    ASSERT_GT(ended, 0) << text;
    EXPECT_LE(ended - killed, 5000) << text;
    const size_t begin = own.find("\nrank ");
    ASSERT_NE(begin, std::string::npos) << text;
    const std::string cause = own.substr(begin + 1, own.find('\n', begin + 1) - begin - 1);
    if (first.empty()) first = cause;
    EXPECT_EQ(cause, first) << text;
    EXPECT_TRUE(std::regex_search(cause, std::regex("ranks? 2"))) << text;
    EXPECT_EQ(own.find("has ended"), std::string::npos) << text;
  }
}

// Every rank then has, in every bit, the weights of a run in which nothing was cut.
TEST(Cut, AfterAResetTrainingGoesOn) {
  for (const auto& [kind, victim, step, wrap] :
       {std::tuple("SEND_F", 1, 0, "replicate"), std::tuple("W", 2, 1, "shard"),
        std::tuple("REDUCE_GRAD", 3, 2, "shard")}) {
    SCOPED_TRACE(kind);
    const std::string undisturbed = run_ranks(kind, victim, 99, wrap, "cut+reset");
    const std::string text = run_ranks(kind, victim, step, wrap, "cut+reset");
    EXPECT_GT(time_after(text, "cut"), 0) << text;
    EXPECT_EQ(time_after(undisturbed, "cut"), -1) << undisturbed;
    std::set<std::string> different;
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::string weights = line_of(part_of(text, rank), "weights ");
      EXPECT_NE(weights, "") << text;
      EXPECT_EQ(weights, line_of(part_of(undisturbed, rank), "weights ")) << text;
      different.insert(weights);
    }
    // Replicas are equal, and shards are not.
    EXPECT_EQ(different.size(), wrap == std::string("shard") ? 4u : 2u) << text;
  }
}

// All combinations: 192 runs of about 3 s. Runs only as kill_grid_test.
TEST(Kill, DISABLED_AllCombinations) {
  for (const char* kind : {"-", "F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B",
                           "UNSHARD", "RESHARD", "REDUCE_GRAD"}) {
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
