#ifndef PIPEWRIGHT_SCHEDULES_GPIPE_H_
#define PIPEWRIGHT_SCHEDULES_GPIPE_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// GPipe: each rank runs all forwards, then all backwards (Huang et al., arXiv 1811.06965). One
// stage per rank. 3 ranks, 4 microbatches:
//
//   rank 0  F0 F1 F2 F3             B0    B1    B2    B3
//   rank 1     F0 F1 F2 F3       B0    B1    B2    B3
//   rank 2        F0 F1 F2 F3 B0    B1    B2    B3
//
// With K slices per microbatch the backwards of a microbatch run from its last slice to its first,
// as in TeraPipe (Li et al., arXiv 2102.07988).
//
// Idle time per rank: (P-1)(F+B)/K. Peak activations per rank: M. In the picture 2(F+B) and 4.
//
// This is the order that PyTorch 2.11's ScheduleGPipe executes. The order that it exports differs:
// it ends in REDUCE_GRAD, which is not a compute action. Generated in linear time.
extern const ScheduleSpec kGPipe;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_GPIPE_H_
