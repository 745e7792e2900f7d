#ifndef PIPEWRIGHT_SCHEDULES_SEQ_1F1B_H_
#define PIPEWRIGHT_SCHEDULES_SEQ_1F1B_H_

#include "pipewright/schedules/schedule_spec.h"

// Seq1F1B (Sun et al., arXiv 2406.03488): 1F1B of slices. Each microbatch is cut along its
// sequence, and a slice is passed on as soon as it is computed. The first backward on the last rank
// is that of a microbatch's last slice, after all its forwards, so each rank warms up with K-1
// slices more than 1F1B; backwards run from the last slice to the first.
//
//   2 ranks, 2 microbatches of 2 slices
//   rank 0: 0F0 0F1 0F2 0B1 0F3 0B0 0B3 0B2
//   rank 1: 1F0 1F1 1B1 1F2 1B0 1F3 1B3 1B2
//
// A rank keeps the activations of P-r+K-1 slices, each with 1/K of a microbatch, while 1F1B keeps
// those of P-r microbatches, and waits for (P-1)(F+B)/K.
//
// Seq1F1B-I is the same of Interleaved1F1B (interleaved.h).

namespace pipewright::schedules {

extern const ScheduleSpec kSeq1F1B, kSeq1F1BI;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_SEQ_1F1B_H_
