#ifndef PIPEWRIGHT_SCHEDULES_ONE_F_ONE_B_H_
#define PIPEWRIGHT_SCHEDULES_ONE_F_ONE_B_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// 1F1B: each backward runs as early as possible, which bounds the number of live activations
// (PipeDream-Flush: Narayanan et al., arXiv 2006.09503; DAPPLE: Fan et al., arXiv 2007.01045). One
// stage per rank. 3 ranks, 4 microbatches, B twice as long as F:
//
//   rank 0  F0 F1 F2          B0-- F3 B1--    B2--    B3--
//   rank 1     F0 F1       B0-- F2 B1-- F3 B2--    B3--
//   rank 2        F0 B0-- F1 B1-- F2 B2-- F3 B3--
//
// Warm-up: rank r runs min(M, P-1-r) forwards. Then it alternates one forward and one backward
// until the forwards are used up, and ends with the remaining backwards. Idle time per rank:
// (P-1)(F+B), as for GPipe. Peak activations on rank r: min(M, P-r), so 3 instead of 4 on rank 0 of
// the picture.
//
// This is the order that PyTorch 2.11's Schedule1F1B executes. The order that it exports is wrong:
// it lacks F0 on the last rank. Generated in linear time.
extern const ScheduleSpec kOneFOneB;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_ONE_F_ONE_B_H_
