#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_RECORDED_COSTS_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_RECORDED_COSTS_H_

#include "pipewright/ir/recording.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/problem/costs.h"

namespace pipewright::schedule {

// The costs of a schedule's actions in a recording of it, in the unit of the recording: per stage,
// the mean of each kind over its microbatches. A simulation with them takes as long as the recorded
// run, as far as all microbatches cost the same.
//
// A compute costs the time from when it could start, because the compute before it on its rank had
// ended and its inputs and parameters were there, until it ends. So what the host does between two
// actions counts. In a recorded compute order nobody knows when inputs arrived, so a compute that
// needs some of other ranks costs its duration.
//
// A stage with B and without I and W takes half of B for each of them. A compound counts only for a
// stage whose kinds are in compounds alone; each of its parts gets its share, in which F, I and W
// count 1 and B 2. A kind that does not occur takes no time. Compounds whose parts also ran alone
// say what a compound hides (Costs::overlap); less than a twentieth is taken for noise.
//
// A recorded transfer lasts until its receiver looks for it, so the latency of a link is its
// fastest transfer. If no receiver waited for most of the time of a transfer, then that is how late
// they looked, and the latency is at most the median of the links whose receivers did. Such is also
// that of a pair of ranks without a transfer.
// Sizes and bandwidths are unknown. The schedule must be verified. A pure function; linear in the
// number of actions.
Costs recorded_costs(const ir::Schedule& schedule, const ir::Recording& recording);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_RECORDED_COSTS_H_
