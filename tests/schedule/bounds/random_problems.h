#ifndef PIPEWRIGHT_TESTS_SCHEDULE_BOUNDS_RANDOM_PROBLEMS_H_
#define PIPEWRIGHT_TESTS_SCHEDULE_BOUNDS_RANDOM_PROBLEMS_H_

#include <cstdint>
#include <random>

#include "pipewright/ir/placement.h"
#include "pipewright/schedule/problem/problem.h"

// Random problems for the soundness of the bounds: also placements that no search is asked for, and
// memory limits that no schedule may meet. (Those of search/random_problem.h are for the search.)

namespace pipewright::tests {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // From `least` to `most`, both included.
  int number(int least, int most) {
    return least + static_cast<int>(engine_() % static_cast<uint64_t>(most - least + 1));
  }
  bool chance(int percent) { return number(1, 100) <= percent; }

 private:
  std::mt19937_64 engine_;
};

// A loop, V or wave, or any stage on any rank.
ir::Placement random_placement(Random& random, int ranks);

// Costs, transfers, sizes and limits that differ everywhere or nowhere. Every limit holds one
// microbatch at least, which does not mean that a schedule meets all of them.
schedule::Problem random_problem(Random& random, ir::Placement placement, int microbatches);

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SCHEDULE_BOUNDS_RANDOM_PROBLEMS_H_
