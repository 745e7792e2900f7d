#ifndef PIPEWRIGHT_SCHEDULES_ZB_H2_H_
#define PIPEWRIGHT_SCHEDULES_ZB_H2_H_

#include "schedules/schedule_spec.h"

namespace pipewright::schedules {

// PICTURE zb_h2
extern const ScheduleSpec kZbH2;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_ZB_H2_H_
