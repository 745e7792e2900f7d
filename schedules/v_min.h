#ifndef PIPEWRIGHT_SCHEDULES_V_MIN_H_
#define PIPEWRIGHT_SCHEDULES_V_MIN_H_

#include "schedules/schedule_spec.h"

namespace pipewright::schedules {

// PICTURE v_min
extern const ScheduleSpec kVMin;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_V_MIN_H_
