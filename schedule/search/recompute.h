#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_RECOMPUTE_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_RECOMPUTE_H_

#include <vector>

#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/problem/problem.h"

// Which stages should recompute: a lower bound for all choices of stages, and the choices that are
// worth a search.
//
//   const RecomputeProblem problem =
//       make_recompute_problem(ir::Placement::loop(4, 4), 8, costs, {.bytes = 2e9});
//   const RecomputeChoices choices = recompute_choices(problem, problem);
//   choices.bound.value               no schedule costs less, whichever stages recompute
//   choices.promising.front().stages  {0, 1}
//
// Pure functions; any thread.

namespace pipewright::schedule::search {

struct RecomputeChoice {
  std::vector<int> stages;  // that recompute, ascending
  Bound bound;              // for this choice
};

struct RecomputeChoices {
  Bound bound;  // for all choices
  // Choices that fit the memory limits, by their bounds: some with the least bounds, and no stage
  // and all stages if they fit. Empty if nothing fits.
  std::vector<RecomputeChoice> promising;
};

// `bounded` is the problem whose costs are bounded. A choice fits if one microbatch fits the
// memory of its `least` problem: `bounded` itself, or that with whole backwards, which take less.
// The bound is exact for the bounds of bounds.h, the least of those of all choices, if few bounds
// of single choices decide it; else it is lower. Takes the time of max(2 S, 64,000 / S) calls of
// lower_bound() for S stages.
RecomputeChoices recompute_choices(const RecomputeProblem& bounded, const RecomputeProblem& least);

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_RECOMPUTE_H_
