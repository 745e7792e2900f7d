#ifndef PIPEWRIGHT_SCHEDULES_WARM_UP_AND_STEADY_H_
#define PIPEWRIGHT_SCHEDULES_WARM_UP_AND_STEADY_H_

#include "pipewright/schedules/schedule_spec.h"

// What the schedules with one stage a rank share: some forwards, then a forward and a backward in
// turn, then the backwards that are left.

namespace pipewright::schedules {

// `warm_up` forwards first, or all that there are.
ir::Row warm_up_and_steady(const Shape& shape, int rank, int warm_up);

// The same with split backwards: the I number b is followed by the oldest W from b = `first_weight`
// on, and the W that are left come last.
ir::Row warm_up_and_steady_split(const Shape& shape, int rank, int warm_up, int first_weight);

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_WARM_UP_AND_STEADY_H_
