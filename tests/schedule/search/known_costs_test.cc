// The search with its default budget against the best known costs and bounds of 96 problems: the
// Zero Bubble paper's costs, heterogeneous stages, limits of controllable-memory schedules, and
// large shapes. Prints one row per problem.
//
//   bazel test --test_output=all //tests/schedule/search:known_costs_test
//   ... --test_arg=--gtest_filter='*hetero*'
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/search/catalogue.h"
#include "pipewright/schedule/search/replay.h"
#include "pipewright/schedule/search/solve.h"
#include "tests/schedule/search/cases.h"

namespace pipewright::schedule::search {
namespace {

class KnownCosts : public testing::TestWithParam<tests::KnownCase> {};

TEST_P(KnownCosts, AreReached) {
  const tests::KnownCase& known = GetParam();
  const Bound bound = lower_bound(known.problem);
  const auto start = std::chrono::steady_clock::now();
  const Solution found = solve(known.problem, {.bound = bound.value,
                                               .evaluations = kDefaultEvaluations,
                                               .candidates = catalogue(known.problem)});
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  const auto above = [&](Ticks cost, Ticks reference) {
    return 100 * (static_cast<double>(cost) / static_cast<double>(reference) - 1);
  };
  fmt::print(
      "{:<40} cost {:>9}  known {:>9} {:>+8.4f}%  bound {:>9}  gap {:>7.4f}%  {:>6.2f} s  {}\n",
      known.name, found.cost, known.cost, above(found.cost, known.cost), bound.value,
      above(found.cost, bound.value), time.count(), found.candidate);
  std::fflush(stdout);

  EXPECT_LE(above(found.cost, known.cost), 0.1);
  EXPECT_GE(bound.value, known.bound);
  EXPECT_GE(found.cost, bound.value);
  Replay replay(known.problem);
  ASSERT_TRUE(replay.run(found.words));
  EXPECT_EQ(replay.cost(), found.cost);
  EXPECT_TRUE(fits_memory(known.problem, found.words));
}

std::string name_of(const testing::TestParamInfo<tests::KnownCase>& info) {
  std::string name = fmt::format("{}_{}", info.param.name, info.index);
  std::ranges::replace_if(
      name, [](char letter) { return !std::isalnum(letter); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Table, KnownCosts,
    testing::ValuesIn(tests::read_cases("tests/schedule/search/known_costs.json")), name_of);

}  // namespace
}  // namespace pipewright::schedule::search
