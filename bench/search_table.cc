// The search with its default budget against the best known costs and bounds of 94 problems: the
// Zero Bubble paper's costs, heterogeneous stages, limits of controllable-memory schedules, and
// large shapes. Prints a row per problem as it is done, and at the end how many were reached; takes
// about ten minutes.
//
//   bazel run //bench:search_table              all problems
//   bazel run //bench:search_table -- hetero    those with `hetero` in their name
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <string_view>

#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/search/catalogue.h"
#include "pipewright/schedule/search/solve.h"
#include "tests/schedule/search/cases.h"

namespace pipewright::schedule::search {
namespace {

double percent_above(Ticks cost, Ticks reference) {
  return 100 * gap(static_cast<double>(cost), static_cast<double>(reference));
}

struct Totals {
  int problems = 0, reached = 0, proved = 0;
};

void search_and_print(const tests::KnownCase& known, Totals* totals) {
  const Bound bound = lower_bound(known.problem);
  const auto start = std::chrono::steady_clock::now();
  const Solution found = solve_in_phases(known.problem, {.bound = bound.value,
                                                         .evaluations = kDefaultEvaluations,
                                                         .candidates = catalogue(known.problem)});
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  fmt::print(
      "{:<40} cost {:>9}  known {:>9} {:>+8.4f}%  bound {:>9}  gap {:>7.4f}%  {:>6.2f} s  {}\n",
      known.name, found.cost, known.cost, percent_above(found.cost, known.cost), bound.value,
      percent_above(found.cost, bound.value), time.count(), found.candidate);
  std::fflush(stdout);
  ++totals->problems;
  totals->reached += percent_above(found.cost, known.cost) <= 0.1 ? 1 : 0;
  totals->proved += found.cost == bound.value ? 1 : 0;
}

}  // namespace
}  // namespace pipewright::schedule::search

int main(int argc, char** argv) {
  using namespace pipewright;
  const std::string_view wanted = argc > 1 ? argv[1] : "";
  schedule::search::Totals totals;
  for (const tests::KnownCase& known :
       tests::read_known_costs("tests/schedule/search/known_costs.json")) {
    if (known.name.find(wanted) == std::string::npos) continue;
    schedule::search::search_and_print(known, &totals);
  }
  fmt::print("{} problems: {} at most 0.1% above the best known cost, {} proved optimal\n",
             totals.problems, totals.reached, totals.proved);
}
