#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_SOLVE_IN_PHASES_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_SOLVE_IN_PHASES_H_

#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/solve.h"

namespace pipewright::schedule::search {

// Like solve(), but problems with many microbatches are searched with fewer first, where a budget
// goes farther. What is found there is repeated (repeat.h) and begun with; it takes a quarter of
// the budget at most. In the first phase, progress has the bound and the number of the fewer
// microbatches. If it is cancelled in the first phase, the result is the best of that, repeated.
Solution solve_in_phases(const Problem& problem, const SolveOptions& options);

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_SOLVE_IN_PHASES_H_
