#ifndef PIPEWRIGHT_SCHEDULES_PLAN_COST_H_
#define PIPEWRIGHT_SCHEDULES_PLAN_COST_H_

#include <cstdint>

#include "pipewright/ir/placement.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/schedules/schedule_spec.h"

// What a plan costs, for schedules that compare several at the times they are given:
//
//   rank 0  F . . I W      at unit times, plan_cost(placement, 1, times, rows) is 5: the span of
//   rank 0 rank 1    F I W

namespace pipewright::schedules {

// The longest span of any rank if every action runs as soon as it can. The rows have single F, I
// and W, and can run.
int64_t plan_cost(const ir::Placement& placement, int num_microbatches, const PlanTimes& times,
                  const ir::Rows& rows);

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_PLAN_COST_H_
