#ifndef PIPEWRIGHT_TESTS_SCHEDULE_SEARCH_CASES_H_
#define PIPEWRIGHT_TESTS_SCHEDULE_SEARCH_CASES_H_

#include <string>
#include <vector>

#include "pipewright/schedule/problem/problem.h"

// Problems whose costs are known, from the JSON files in this folder. A file has a text, "about",
// and "cases", one per line:
//
//   {"name": "table9_1.5B", "placement": "loop", "ranks": 8, "stages": 8, "microbatches": 24,
//    "work": [[18522, 18086, 9337]], "transfers": [601], "activation": 2, "weight_input": 1,
//    "limit": 16, "cost": 1310405, "bound": 1310405}
//
// `placement` is "loop" or "v". `work` has F, I and W, of all stages or one entry per stage;
// `transfers` between a stage and the next, in both directions, likewise; `activation` and
// `weight_input` the units of memory per stage that are in use from F to I and from I to W; `limit`
// the units per rank. `cost` is the least that is known. What the last fields say depends on the
// file:
//
//   exact_optima.json  "proved": true if no schedule costs less. Otherwise "proved": false and
//                      "proved_bound", which no schedule costs less than. A constraint solver says
//                      so, which knows nothing of our bounds; exact_optima.py writes the file.
//   known_costs.json   "bound": what lower_bound() returned when the file was written, by
//                      `bazel run //bench:search_table -- --update`.

namespace pipewright::tests {

struct KnownCase {
  std::string name;  // "table9_1.5B_loop_8x1_24_limit_16"
  schedule::Problem problem;
  schedule::Ticks cost;
  schedule::Ticks bound;  // no schedule costs less

  bool is_proved() const { return cost == bound; }
};

// Read a file; throw std::runtime_error or json's exceptions if it is not as above: every field
// must be there, and no others.
std::vector<KnownCase> read_exact_optima(const std::string& path);
std::vector<KnownCase> read_known_costs(const std::string& path);

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SCHEDULE_SEARCH_CASES_H_
