#ifndef PIPEWRIGHT_SCHEDULES_GPIPE_H_
#define PIPEWRIGHT_SCHEDULES_GPIPE_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// GPipe: all forwards, then all backwards (Huang et al., arXiv 1811.06965). 3 ranks, 4
// microbatches:
//
//   rank 0  F0 F1 F2 F3             B0    B1    B2    B3
//   rank 1     F0 F1 F2 F3       B0    B1    B2    B3
//   rank 2        F0 F1 F2 F3 B0    B1    B2    B3
//
// Each rank is idle for (P-1)(F+B) and keeps M activations: here 2(F+B) and 4.
// The order is what PyTorch 2.11 runs; its exported one has idle slots in it and REDUCE_GRAD behind
// it.
extern const ScheduleSpec kGPipe;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_GPIPE_H_
