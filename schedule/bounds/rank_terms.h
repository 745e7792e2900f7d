#ifndef PIPEWRIGHT_SCHEDULE_BOUNDS_RANK_TERMS_H_
#define PIPEWRIGHT_SCHEDULE_BOUNDS_RANK_TERMS_H_

#include <vector>

#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/bounds/chain.h"
#include "pipewright/schedule/problem/problem.h"

// What the bounds of bounds.h, which has the notation, have in common. Plain values.

namespace pipewright::schedule {

// The work of a rank: work(x) is the sum.
struct Work {
  Ticks forward = 0, backward = 0;  // of all F; of all I and W

  Ticks sum() const { return forward + backward; }
  // Hidden(alone), which bounds.h defines.
  Ticks hidden(const Problem& problem, Ticks alone) const;
};
// That of the rank with these stages.
Work work_of(const Problem& problem, const std::vector<int>& stages);

// The terms of the statements for one rank.
struct RankTerms {
  Memory limit = 0;      // L, at most what all microbatches take
  bool all_fit = false;  // all Fs of the rank fit in memory at once
  Work work;
  Ticks fill = 0, warm_up = 0;
  Ticks cool_down = 0;  // of warm_up_and_cool_down_bound()
  Ticks rest = 0;       // of nested_window_bound(), where it may be negative
  Ticks hidden = 0;     // Hidden(min(Fill, path(x0, xl)))
};

// A problem with the chains of its fastest and slowest microbatch, and what is known of each rank.
// The problem must outlive it.
struct Instance {
  explicit Instance(const Problem& of);

  // Of the rank with these stages, which are not empty.
  const RankTerms& terms_of(const std::vector<int>& stages) const;

  const Problem& problem;
  Chain fast, slow;
  std::vector<std::vector<int>> stages_of;  // by rank, ascending
  std::vector<RankTerms> terms;             // by rank; of those with stages
};

// The first terms of a bound: a rank's work and, if there is an overlap, what compounds hide of it.
std::vector<BoundTerm> work_terms(const Problem& problem, const Work& work, Ticks hidden);

// first_backwards_bound(), in a file of its own.
Bound first_backwards(const Instance& instance);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_BOUNDS_RANK_TERMS_H_
