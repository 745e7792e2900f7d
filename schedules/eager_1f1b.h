#ifndef PIPEWRIGHT_SCHEDULES_EAGER_1F1B_H_
#define PIPEWRIGHT_SCHEDULES_EAGER_1F1B_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// Eager 1F1B: 1F1B with twice the warm-up, so that each transfer has the time of one action before
// it is needed (Zhuang et al., arXiv 2211.05322; JaxPP's Eager1F1B). 3 ranks, 4 microbatches:
//
//   rank 0  F0 F1 F2 F3       B0--    B1--    B2--    B3--
//   rank 1     F0 F1 F2    B0-- F3 B1--    B2--    B3--
//   rank 2        F0 B0-- F1 B1-- F2 B2-- F3 B3--
//
// Rank r runs min(M, 2(P-1-r)) forwards, then a forward and a backward in turn, then the backwards
// that are left. The bubble is that of 1F1B, (P-1)(F+B); rank r keeps min(M, 2(P-r)-1) activations:
// rank 0 of 3 keeps min(4, 5) = 4.
extern const ScheduleSpec kEager1F1B;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_EAGER_1F1B_H_
