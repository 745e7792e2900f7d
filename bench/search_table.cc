// The search against the best known costs and bounds of 94 problems (known_costs.json): the Zero
// Bubble paper's costs, heterogeneous stages, limits of controllable-memory schedules, and large
// shapes. Prints a row per problem as it is done, and at the end how many were reached; takes about
// ten minutes.
//
//   bazel run //bench:search_table                   all problems, with the default budget
//   bazel run //bench:search_table -- hetero         those with `hetero` in their name
//   bazel run //bench:search_table -- hetero 1e9     with this budget, in evaluated actions
//   bazel run //bench:search_table -- --update       also rewrites known_costs.json: each `bound`
//                                                    becomes that of now, and each `cost` what was
//                                                    found, if that is less
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/search/catalogue.h"
#include "pipewright/schedule/search/search.h"
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

// Prints a row, and returns the case with the lower of its costs and the bound of now.
tests::KnownCase search_and_print(tests::KnownCase known, int64_t evaluations, Totals* totals) {
  const Bound bound = lower_bound(known.problem);
  const auto start = std::chrono::steady_clock::now();
  const Solution found = solve_in_phases(
      known.problem,
      {.bound = bound.value, .evaluations = evaluations, .candidates = catalogue(known.problem)});
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  fmt::print(
      "{:<40} cost {:>9}  known {:>9} {:>+8.4f}%  bound {:>9}  gap {:>7.4f}%  {:>6.2f} s  {}\n",
      known.name, found.cost, known.cost, percent_above(found.cost, known.cost), bound.value,
      percent_above(found.cost, bound.value), time.count(), found.candidate);
  std::fflush(stdout);
  ++totals->problems;
  totals->reached += percent_above(found.cost, known.cost) <= 0.1 ? 1 : 0;
  totals->proved += found.cost == bound.value ? 1 : 0;
  known.cost = std::min(known.cost, found.cost);
  known.bound = bound.value;
  return known;
}

// Replaces the last fields of the file's lines with a case, which are in the order of `cases`.
void rewrite(const std::string& path, const std::vector<tests::KnownCase>& cases) {
  std::ifstream file(path);
  std::string line, text;
  auto next = cases.begin();
  while (std::getline(file, line)) {
    const size_t cost = line.find("\"cost\": ");
    if (line.starts_with("{\"name\"") && cost != std::string::npos) {
      const bool is_last = line.back() != ',';
      line.resize(cost);
      line += fmt::format("\"cost\": {}, \"bound\": {}}}{}", next->cost, next->bound,
                          is_last ? "" : ",");
      ++next;
    }
    text += line + '\n';
  }
  std::ofstream(path) << text;
}

}  // namespace
}  // namespace pipewright::schedule::search

int main(int argc, char** argv) {
  using namespace pipewright;
  const std::string path = "tests/schedule/search/known_costs.json";
  std::string filter = argc > 1 ? argv[1] : "";
  const int64_t evaluations = argc > 2 ? static_cast<int64_t>(std::strtod(argv[2], nullptr))
                                       : schedule::search::kDefaultEvaluations;
  const char* workspace = nullptr;
  if (filter == "--update") {
    filter = "";
    workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
    if (workspace == nullptr) {
      fmt::print(stderr, "--update: expected to run under `bazel run`\n");
      return 2;
    }
  }
  schedule::search::Totals totals;
  std::vector<tests::KnownCase> cases = tests::read_known_costs(path);
  for (tests::KnownCase& known : cases) {
    if (known.name.find(filter) == std::string::npos) continue;
    known = schedule::search::search_and_print(known, evaluations, &totals);
  }
  fmt::print("{} problems: {} at most 0.1% above the best known cost, {} proved optimal\n",
             totals.problems, totals.reached, totals.proved);
  if (workspace != nullptr) schedule::search::rewrite(fmt::format("{}/{}", workspace, path), cases);
}
