// Proven optima of small problems, and that the answer depends on nothing but the question.
#include "pipewright/schedule/search/solve.h"

#include <gtest/gtest.h>

#include <vector>

#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/replay.h"
#include "tests/schedule/search/cases.h"
#include "tests/schedule/search/random_problem.h"

namespace pipewright::schedule::search {
namespace {

std::vector<tests::KnownCase> exact_optima() {
  return tests::read_exact_optima("tests/schedule/search/exact_optima.json");
}

// Optima that a constraint solver proved, or the best known where it did not finish
// (exact_optima.py).
TEST(Solve, ReachesTheOptimaOfSmallProblems) {
  const auto cases = exact_optima();
  ASSERT_EQ(cases.size(), 23u);
  for (const tests::KnownCase& one : cases) {
    const Solution found =
        solve(one.problem, {.bound = one.bound, .evaluations = 20'000'000, .threads = 1});
    EXPECT_LE(found.cost, one.cost) << one.name;
    EXPECT_GE(found.cost, one.bound) << one.name;
  }
}

// The search above stops where the solver's proof says that it may. This one goes on.
TEST(Solve, FindsNothingBelowWhatIsProved) {
  for (const tests::KnownCase& one : exact_optima())
    EXPECT_GE(solve(one.problem, {.evaluations = 1'000'000}).cost, one.bound) << one.name;
}

TEST(Solve, ReturnsAScheduleThatRunsAndFits) {
  std::mt19937 problems(6);
  for (int run = 0; run < 60; ++run) {
    const Problem problem = tests::random_problem(&problems);
    const Solution found = solve(problem, {.evaluations = 50'000});
    Replay replay(problem);
    ASSERT_TRUE(replay.run(found.words));
    EXPECT_EQ(replay.cost(), found.cost);
    EXPECT_TRUE(fits_memory(problem, found.words));
  }
}

// Transfers take a million times as long as actions, but only in one direction: the times of a move
// that deadlocks grow by a millionth of the cost in each round of its cycle.
TEST(Solve, KeepsToTheBudgetWhereTransfersTakeVeryLong) {
  for (const bool forward : {true, false}) {
    const Costs costs = {.link = {.bandwidth = 1},
                         .output_bytes = forward ? 1e6 : 0,
                         .input_gradient_bytes = forward ? 0 : 1e6};
    for (const ir::Placement& placement : {ir::Placement::v(4, 8), ir::Placement::loop(2, 4)}) {
      const Problem problem = make_problem(placement, 4, costs, {});
      EXPECT_LT(solve(problem, {.evaluations = 300'000}).evaluations, 600'000);
    }
  }
}

TEST(Solve, DoesNotDependOnThreads) {
  std::mt19937 problems(7);
  for (int run = 0; run < 20; ++run) {
    const Problem problem = tests::random_problem(&problems);
    const Solution one = solve(problem, {.evaluations = 100'000, .threads = 1});
    for (const int threads : {2, 3, 16}) {
      const Solution other = solve(problem, {.evaluations = 100'000, .threads = threads});
      EXPECT_EQ(one.words, other.words);
      EXPECT_EQ(one.evaluations, other.evaluations);
    }
    // Nor where it stops at the bound.
    const Solution stopped = solve(problem, {.bound = one.cost, .evaluations = 100'000});
    const Solution stopped_other =
        solve(problem, {.bound = one.cost, .evaluations = 100'000, .threads = 4});
    EXPECT_EQ(stopped.cost, one.cost);
    EXPECT_EQ(stopped.words, stopped_other.words);
    EXPECT_EQ(stopped.evaluations, stopped_other.evaluations);
  }
}

TEST(Solve, IsNeverWorseThanACandidate) {
  std::mt19937 problems(8);
  for (int run = 0; run < 30; ++run) {
    const Problem problem = tests::random_problem(&problems);
    const Solution good = solve(problem, {.evaluations = 200'000});
    const Solution found = solve(problem, {.evaluations = 1, .candidates = {{"good", good.words}}});
    EXPECT_LE(found.cost, good.cost);
    if (found.words == good.words) {
      EXPECT_EQ(found.candidate, "good");
    }
  }
}

TEST(Solve, IgnoresCandidatesThatDoNotFitOrDeadlock) {
  Problem problem;
  problem.placement = ir::Placement::loop(2, 2);
  problem.num_microbatches = 4;
  problem.stages.assign(2, {.forward = 1,
                            .backward_input = 1,
                            .backward_weight = 1,
                            .activation = 1,
                            .weight_input = 1});
  problem.memory_limits = {1, 1};
  const Words alone = one_at_a_time(problem);
  Words deadlock = alone, large = alone;
  std::swap(deadlock[0][0], deadlock[0][1]);
  std::swap(large[0][2], large[0][3]);  // F of the next microbatch before W
  const Solution found = solve(
      problem, {.evaluations = 1'000, .candidates = {{"deadlock", deadlock}, {"large", large}}});
  EXPECT_EQ(found.words, alone);
}

TEST(Solve, StopsWhenCancelled) {
  std::mt19937 problems(9);
  Problem problem = tests::random_problem(&problems);
  problem.num_microbatches = 50;
  problem.microbatch_scale = {};
  std::atomic<bool> cancel = false;
  const Solution found = solve(problem, {.evaluations = int64_t{1} << 50,
                                         .on_progress = [&](const Progress&) { cancel = true; },
                                         .cancel = &cancel});
  EXPECT_TRUE(found.is_cancelled);
  EXPECT_TRUE(fits_memory(problem, found.words));
}

}  // namespace
}  // namespace pipewright::schedule::search
