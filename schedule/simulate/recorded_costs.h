#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_RECORDED_COSTS_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_RECORDED_COSTS_H_

#include "pipewright/ir/recording.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/simulate/costs.h"

namespace pipewright::schedule {

// The costs of a schedule's actions in a recording of it, in the unit of the recording: per stage,
// the median duration of each kind over its microbatches.
//
// A stage with B and without I and W takes half of B for each of them. A compound counts only for a
// stage whose kinds are in compounds alone; each of its parts gets its share, in which F, I and W
// count 1 and B 2. A kind that does not occur takes no time.
//
// A recorded transfer lasts until its receiver looks for it, so the latency of a link is its
// fastest transfer, and that of a pair of ranks without a transfer is the median of the others.
// Sizes and bandwidths are unknown. The schedule must be verified. A pure function; linear in the
// number of actions.
Costs recorded_costs(const ir::Schedule& schedule, const ir::Recording& recording);

// The stage that the tensor of a SEND is for.
int receiving_stage(ir::ActionPart send);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_RECORDED_COSTS_H_
