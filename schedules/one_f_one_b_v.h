#ifndef PIPEWRIGHT_SCHEDULES_ONE_F_ONE_B_V_H_
#define PIPEWRIGHT_SCHEDULES_ONE_F_ONE_B_V_H_

#include "schedules/schedule_spec.h"

namespace pipewright::schedules {

// PICTURE 1f1b_v
extern const ScheduleSpec kOneFOneBV;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_ONE_F_ONE_B_V_H_
