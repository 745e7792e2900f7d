// The incremental replay of the local search against a full one, and what annealing finds.
#include "pipewright/schedule/search/local_search.h"

#include <gtest/gtest.h>

#include "pipewright/schedule/search/replay.h"
#include "tests/schedule/search/random_problem.h"

namespace pipewright::schedule::search {
namespace {

void expect_times_and_memory_of_a_replay(double overlap) {
  std::mt19937 problems(5);
  int compounds = 0;
  for (int run = 0; run < 300; ++run) {
    Problem problem = tests::random_problem(&problems);
    problem.overlap = overlap;
    LocalSearch search(problem, static_cast<uint64_t>(run));
    search.start(one_at_a_time(problem));
    const Ticks start = search.best_cost();
    for (int k = 0; k < 20; ++k) {
      search.anneal({.evaluations = 300, .temperature = 5});
      ASSERT_TRUE(search.is_consistent()) << run << " " << k;
    }
    Replay replay(problem);
    ASSERT_TRUE(replay.run(search.best()));
    ASSERT_EQ(replay.cost(), search.best_cost());
    ASSERT_TRUE(fits_memory(problem, search.best()));
    ASSERT_LE(search.best_cost(), start);
    compounds += has_compound(search.best());
    // From words with compounds.
    search.start(search.best());
    ASSERT_EQ(replay.cost(), search.best_cost());
    ASSERT_TRUE(search.is_consistent());
  }
  EXPECT_EQ(compounds > 100, overlap > 0) << compounds;
}

TEST(LocalSearch, KeepsTimesAndMemoryOfAReplay) { expect_times_and_memory_of_a_replay(0); }
TEST(LocalSearch, KeepsTimesAndMemoryOfCompounds) { expect_times_and_memory_of_a_replay(0.3); }

// One rank never idles, so its cost is its work from the start; two ranks with enough memory reach
// the load of the longer one when W can fill all gaps.
TEST(LocalSearch, FindsScheduleWithoutIdleTime) {
  Problem problem;
  problem.placement = ir::Placement::loop(2, 2);
  problem.num_microbatches = 6;
  problem.stages.assign(2, {.forward = 1, .backward_input = 1, .backward_weight = 1});
  problem.memory_limits = {kNoLimit, kNoLimit};
  LocalSearch search(problem, 1);
  search.start(one_at_a_time(problem));
  EXPECT_GT(search.best_cost(), 18);
  search.anneal({.evaluations = 200'000, .temperature = 1, .bound = 18});
  EXPECT_EQ(search.best_cost(), 18);
}

}  // namespace
}  // namespace pipewright::schedule::search
