#ifndef PIPEWRIGHT_SCHEDULES_EAGER_1F1B_H_
#define PIPEWRIGHT_SCHEDULES_EAGER_1F1B_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// Eager 1F1B: 1F1B with twice the warm-up, so that each transfer can overlap with one compute
// action before its result is needed (Zhuang et al., arXiv 2211.05322; JaxPP's Eager1F1B). One
// stage per rank. 3 ranks, 4 microbatches:
//
//   rank 0  F0 F1 F2 F3       B0--    B1--    B2--    B3--
//   rank 1     F0 F1 F2    B0-- F3 B1--    B2--    B3--
//   rank 2        F0 B0-- F1 B1-- F2 B2-- F3 B3--
//
// Warm-up: rank r runs min(M, 2(P-1-r)) forwards. Then it alternates one forward and one backward
// until the forwards are used up, and ends with the remaining backwards. Idle time per rank:
// (P-1)(F+B), as for 1F1B. Peak activations on rank r: min(M, 2(P-r)-1), so min(4, 5) = 4 on rank 0
// of the picture. Generated in linear time.
extern const ScheduleSpec kEager1F1B;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_EAGER_1F1B_H_
