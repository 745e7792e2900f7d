#ifndef PIPEWRIGHT_SCHEDULE_BOUNDS_RANK_TERMS_H_
#define PIPEWRIGHT_SCHEDULE_BOUNDS_RANK_TERMS_H_

#include <vector>

#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/bounds/chain.h"
#include "pipewright/schedule/search/problem.h"

// What the bounds of bounds.h, which has the notation, have in common. Plain values.

namespace pipewright::schedule {

// A problem with the chains of its fastest and slowest microbatch, and the stages of each rank.
// The problem must outlive it.
struct Instance {
  explicit Instance(const search::Problem& of);

  const search::Problem& problem;
  Chain fast, slow;
  std::vector<std::vector<int>> stages_of;  // by rank, ascending
};

// work(x) of the rank with these stages.
search::Ticks work_of(const search::Problem& problem, const std::vector<int>& stages);

// The terms of the statements for one rank.
struct RankTerms {
  search::Memory limit = 0;  // L, at most what all microbatches take
  bool all_fit = false;      // all Fs of the rank fit in memory at once
  search::Ticks work = 0, fill = 0, warm_up = 0, chain = 0, pending = 0, deferred = 0;
  search::Ticks cool_down = 0;  // of warm_up_and_cool_down_bound()
};
RankTerms terms_of(const Instance& instance, const std::vector<int>& stages);

// first_backwards_bound(), in a file of its own.
Bound first_backwards(const Instance& instance);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_BOUNDS_RANK_TERMS_H_
