#ifndef PIPEWRIGHT_SCHEDULES_WARM_UP_AND_STEADY_H_
#define PIPEWRIGHT_SCHEDULES_WARM_UP_AND_STEADY_H_

#include "pipewright/schedules/schedule_spec.h"

// The common form of the schedules with one stage per rank (1F1B, Eager1F1B, ZB-H1, ZB-H2):
//
//   warm-up    some forwards
//   steady     one forward and one backward in turn
//   cool-down  the remaining backwards
//
// The schedules differ in the number of warm-up forwards and in when they run W. Linear in the
// length of the row. Pure functions; any thread.

namespace pipewright::schedules {

// The row of `rank` with whole backwards. The warm-up has min(warm_up, M) forwards. With slices,
// the backwards of a microbatch are in the opposite order, and the warm-up must have all of its
// slices but one.
ir::Row warm_up_and_steady(const Shape& shape, int rank, int warm_up);

// The same with split backwards: from microbatch `first_weight` on, each I is followed by the
// oldest pending W; the remaining Ws come last.
ir::Row warm_up_and_steady_split(const Shape& shape, int rank, int warm_up, int first_weight);

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_WARM_UP_AND_STEADY_H_
