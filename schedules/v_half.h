#ifndef PIPEWRIGHT_SCHEDULES_V_HALF_H_
#define PIPEWRIGHT_SCHEDULES_V_HALF_H_

#include "schedules/schedule_spec.h"

namespace pipewright::schedules {

// PICTURE v_half
extern const ScheduleSpec kVHalf;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_V_HALF_H_
