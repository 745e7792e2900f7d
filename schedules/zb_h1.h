#ifndef PIPEWRIGHT_SCHEDULES_ZB_H1_H_
#define PIPEWRIGHT_SCHEDULES_ZB_H1_H_

#include "schedules/schedule_spec.h"

namespace pipewright::schedules {

// PICTURE zb_h1
extern const ScheduleSpec kZbH1;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_ZB_H1_H_
