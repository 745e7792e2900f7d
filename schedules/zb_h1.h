#ifndef PIPEWRIGHT_SCHEDULES_ZB_H1_H_
#define PIPEWRIGHT_SCHEDULES_ZB_H1_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// ZB-H1: 1F1B with split backwards. Only I is on the critical path between ranks, so W can run in
// slots that would be idle (Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section
// 2.3). One stage per rank. 3 ranks, 4 microbatches, F = I = W:
//
//   rank 0  F0 F1 F2       I0 W0 F3 I1 W1 I2 W2 I3 W3
//   rank 1     F0 F1    I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
//   rank 2        F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
//
// Warm-up: rank r runs min(M, P-1-r) forwards. Then for each microbatch b: one forward, if any is
// left, the I of b, and from b = r on also the oldest pending W. The remaining Ws come last. Idle
// time of rank 0 between its first and last action: (P-1)(F+I-W), 2 of 14 slots in the picture.
// Peak activations per rank: min(M, P), so 3 instead of 4. Generated in linear time.
extern const ScheduleSpec kZbH1;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_ZB_H1_H_
