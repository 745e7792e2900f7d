#ifndef PIPEWRIGHT_SCHEDULES_ONE_F_ONE_B_H_
#define PIPEWRIGHT_SCHEDULES_ONE_F_ONE_B_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// 1F1B: a backward as soon as there is one (PipeDream-Flush, arXiv 2006.09503; DAPPLE, arXiv
// 2007.01045). 3 ranks, 4 microbatches, B twice as long as F:
//
//   rank 0  F0 F1 F2          B0-- F3 B1--    B2--    B3--
//   rank 1     F0 F1       B0-- F2 B1-- F3 B2--    B3--
//   rank 2        F0 B0-- F1 B1-- F2 B2-- F3 B3--
//
// Rank r runs min(M, P-1-r) forwards, then a forward and a backward in turn, then the backwards
// that are left. Each rank is idle for (P-1)(F+B), as in GPipe, but keeps only min(M, P-r)
// activations: rank 0 of 3 keeps 3 of 4.
//
// The order is what PyTorch 2.11 runs. The one that it exports lacks F0 on the last rank.
extern const ScheduleSpec kOneFOneB;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_ONE_F_ONE_B_H_
