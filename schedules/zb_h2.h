#ifndef PIPEWRIGHT_SCHEDULES_ZB_H2_H_
#define PIPEWRIGHT_SCHEDULES_ZB_H2_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// ZB-H2: ZB-H1 with twice the warm-up, which removes the remaining idle time at the cost of nearly
// twice the activations (Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section
// 2.3). One stage per rank. 3 ranks, 6 microbatches, F = I = W:
//
//   rank 0  F0 F1 F2 F3 F4 I0 W0 F5 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5
//   rank 1     F0 F1 F2 I0 F3 I1 F4 I2 W0 F5 I3 W1 I4 W2 I5 W3 W4 W5
//   rank 2        F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 F5 I5 W1 W2 W3 W4 W5
//
// Warm-up: rank r runs min(M, 2(P-1-r)) forwards. Then for each microbatch b: one forward, if any
// is left, the I of b, and from b = 2r on also the oldest pending W. The remaining Ws come last.
// Idle time of a rank between its first and last action: (P-1)(F+I-2W). In the picture that is 0:
// every rank is busy for 6 * 3 = 18 slots in a row. Each rank starts one slot after the previous
// one, so the whole schedule takes P-1 slots more. Peak activations per rank: min(M, 2P-1), 5 in
// the picture. Generated in linear time.
extern const ScheduleSpec kZbH2;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_ZB_H2_H_
