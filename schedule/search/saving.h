#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_SAVING_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_SAVING_H_

#include <vector>

#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/problem/problem.h"

// Which stages should recompute or offload: a lower bound for all choices, and the choices that are
// worth a search.
//
//   const SavingProblem problem =
//       make_saving_problem(ir::Placement::loop(4, 4), 8, costs, {.bytes = 2e9});
//   const SavingChoices choices = saving_choices(problem, problem, {.recompute = true});
//   choices.bound.value                         no schedule costs less, whichever stages recompute
//   choices.promising.front().saving.recompute  {0, 1}
//
// Pure functions; any thread.

namespace pipewright::schedule::search {

// What stages may do. A stage does one of them at most.
struct AllowedSaving {
  bool recompute = false;
  bool offload = false;  // for stages with something to offload
};

struct SavingChoice {
  Saving saving;
  Bound bound;  // for this choice
};

struct SavingChoices {
  Bound bound;  // for all choices
  // Choices that may fit the memory limits, by their bounds: some with the least bounds, and no
  // stage, and all stages that can in one way, if they may fit. Empty if nothing fits.
  std::vector<SavingChoice> promising;
};

// `bounded` is the problem whose costs are bounded. A choice may fit if one microbatch fits the
// memory of its `least` problem: `bounded` itself, or that with whole backwards, which take less.
// The bound is exact for the bounds of bounds.h, the least of those of all choices, if few bounds
// of single choices decide it; else it is lower. Takes the time of max(2 S, 64,000 / S) calls of
// lower_bound() for S stages.
SavingChoices saving_choices(const SavingProblem& bounded, const SavingProblem& least,
                             AllowedSaving allowed);

// The problem in which each stage does all that it may at once: it takes the least time and the
// least memory of its choices, so no choice has a schedule that this problem does not have.
Problem undecided(const SavingProblem& problem, AllowedSaving allowed);

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_SAVING_H_
