#ifndef PIPEWRIGHT_SCHEDULES_ZB_H1_H_
#define PIPEWRIGHT_SCHEDULES_ZB_H1_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// ZB-H1: 1F1B whose backwards are split, so that a W fills what would be idle (Qi et al., arXiv
// 2401.10241, section 2.3). 3 ranks, 4 microbatches, F = I = W:
//
//   rank 0  F0 F1 F2       I0 W0 F3 I1 W1 I2 W2 I3 W3
//   rank 1     F0 F1    I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
//   rank 2        F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
//
// Rank r runs min(M, P-1-r) forwards; then for each microbatch a forward, its I and, from
// microbatch r on, the oldest W; then what W are left. Rank 0 is idle for (P-1)(F+I-W) between its
// first action and its last: 2 of 14 slots here. Each rank keeps at most min(M, P) activations: 3
// of 4.
extern const ScheduleSpec kZbH1;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_ZB_H1_H_
