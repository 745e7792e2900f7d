#ifndef PIPEWRIGHT_TESTS_SCHEDULE_SEARCH_CASES_H_
#define PIPEWRIGHT_TESTS_SCHEDULE_SEARCH_CASES_H_

#include <string>
#include <vector>

#include "pipewright/schedule/problem/problem.h"

// Problems with published or proven costs, from JSON files in this folder. One entry:
//
//   {"name": "table9_1.5B", "placement": "loop", "ranks": 8, "stages": 8, "microbatches": 24,
//    "work": [[18522, 18086, 9337]], "transfers": [601], "activation": 2, "weight_input": 1,
//    "limit": 16, "cost": 1310405, "bound": 1310405}
//
// `work` has F, I and W, of all stages or one entry per stage; `transfers` between a stage and the
// next, in both directions; `activation` and `weight_input` the units of memory per stage that are
// in use from F to I and from I to W; `limit` the units per rank. `cost` is the best known, and no
// schedule costs less than `bound`; both are equal for a proven optimum.

namespace pipewright::tests {

struct KnownCase {
  std::string name;  // "table9_1.5B_loop_8x1_24_limit_16"
  schedule::Problem problem;
  schedule::Ticks cost;
  schedule::Ticks bound;
};

// Reads a file; throws std::runtime_error or json's exceptions if it is not as above.
std::vector<KnownCase> read_cases(const std::string& path);

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SCHEDULE_SEARCH_CASES_H_
