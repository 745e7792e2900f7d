#ifndef PIPEWRIGHT_SCHEDULES_INTERLEAVED_ZERO_BUBBLE_H_
#define PIPEWRIGHT_SCHEDULES_INTERLEAVED_ZERO_BUBBLE_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// Interleaved zero bubble: ZB-H1 over V stages a rank (Qi et al., arXiv 2401.10241). Backward is
// split: I gives what the stage before waits for, W fills the gaps. 2 ranks, 4 stages, 4
// microbatches, the first half:
//
//   rank 0  0F0 0F1 2F0     2F1 2I0 2W0 0F2 2I1 2W1 0F3 0I0 0W0 ...
//   rank 1      1F0 1F1 3F0 3I0 3F1 3I1 3W0 1F2 1I0 3W1 1F3 ...
//
// Rank r runs min((V-1) R + P-1-r, V M) forwards first, with R = M div max(1, M div P); then a
// forward and an I in turn; from backward number r on, each I is followed by the oldest W that
// waits; the rest of the Ws stand at the end. Each rank is idle for (P-1)(F+I-W), times of one of
// its V stages, and keeps min(V M, (V-1) R + P) activations of a stage: here min(8, 2 + 2) = 4.
//
// Cell for cell PyTorch 2.11's ScheduleInterleavedZeroBubble. Its last step, align, delays each
// forward by idle slots until the stage before has run it in an earlier step; I and W are not
// looked at.
extern const ScheduleSpec kInterleavedZeroBubble;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_INTERLEAVED_ZERO_BUBBLE_H_
