#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_LOWER_BOUNDS_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_LOWER_BOUNDS_H_

#include <span>
#include <vector>

#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/problem/costs.h"

namespace pipewright::schedule {

// Lower bounds on the cost of a schedule (the longest span of any rank): no other order of the same
// work costs less than any of them. In the unit of the costs.
struct LowerBounds {
  double busiest_rank = 0;    // least compute time of the rank with the most work
  double one_microbatch = 0;  // one microbatch forward through all stages and back, with transfers
  // Before its first microbatch comes back, a rank can only run forwards, and no more of them than
  // the activations at its peak (arXiv 2401.10241, appendix B).
  double warm_up = 0;

  double largest() const;
};

// By stage: whether any of its backwards is split into I and W. Linear in the number of actions.
std::vector<bool> split_stages(const ir::Schedule& schedule);

// The work of one rank, from which the bounds follow.
struct RankWork {
  double busy;  // total duration of its compute actions, in the compounds that hide most
  int peak_activations;
};

// `ranks` has one entry per rank. Without a backward, only busiest_rank is computed. Linear in the
// number of actions.
LowerBounds lower_bounds_of(const ir::Schedule& schedule, const Costs& costs,
                            std::span<const RankWork> ranks);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_LOWER_BOUNDS_H_
