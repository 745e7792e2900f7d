#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_CATALOGUE_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_CATALOGUE_H_

#include <atomic>
#include <vector>

#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/solve.h"

namespace pipewright::schedule::search {

// Every named schedule that exists for the problem's placement and number of microbatches, as
// candidates for solve(), whether its memory fits or not. Interleaved1F1B comes with its usual
// group sizes. V-Adaptive comes with the memory of the problem, and with less and more: planned for
// less memory it may be better, so every limit is tried but those that a lower bound rules out; on
// more than 8 ranks only as many as take some seconds. Without `memory_plans`, V-Adaptive is left
// out: the others take milliseconds. `cancel` may be null; once it is set, returns the candidates
// so far, but at least one.
std::vector<Candidate> catalogue(const Problem& problem, const std::atomic<bool>* cancel = nullptr,
                                 bool memory_plans = true);

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_CATALOGUE_H_
