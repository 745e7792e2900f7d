#ifndef PIPEWRIGHT_SCHEDULES_ZB_H2_H_
#define PIPEWRIGHT_SCHEDULES_ZB_H2_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// ZB-H2: ZB-H1 with twice the warm-up, for nearly twice the activations (Qi et al., arXiv
// 2401.10241, section 2.3). 3 ranks, 6 microbatches, F = I = W:
//
//   rank 0  F0 F1 F2 F3 F4 I0 W0 F5 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5
//   rank 1     F0 F1 F2 I0 F3 I1 F4 I2 W0 F5 I3 W1 I4 W2 I5 W3 W4 W5
//   rank 2        F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 F5 I5 W1 W2 W3 W4 W5
//
// Rank r runs min(M, 2(P-1-r)) forwards; then for each microbatch a forward, its I and, from
// microbatch 2r on, the oldest W; then what W are left. A rank is idle for (P-1)(F+I-2W) between
// its first action and its last, nothing here, where each takes 6 * 3 = 18; as a rank starts after
// the one before it, the whole takes P-1 slots more. It keeps at most min(M, 2P-1) activations: 5
// here.
extern const ScheduleSpec kZbH2;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_ZB_H2_H_
