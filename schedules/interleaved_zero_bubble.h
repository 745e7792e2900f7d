#ifndef PIPEWRIGHT_SCHEDULES_INTERLEAVED_ZERO_BUBBLE_H_
#define PIPEWRIGHT_SCHEDULES_INTERLEAVED_ZERO_BUBBLE_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// Interleaved zero bubble: ZB-H1 with V stages per rank (Qi et al., arXiv 2401.10241). Backwards
// are split: I computes the gradient that the previous stage waits for, and W fills idle slots. 2
// ranks, 4 stages, 4 microbatches, the first half:
//
//   rank 0  0F0 0F1 2F0     2F1 2I0 2W0 0F2 2I1 2W1 0F3 0I0 0W0 ...
//   rank 1      1F0 1F1 3F0 3I0 3F1 3I1 3W0 1F2 1I0 3W1 1F3 ...
//
// Warm-up: rank r runs min((V-1) R + P-1-r, V M) forwards, with R = M div max(1, M div P)
// microbatches per round (interleaved.h). Then it alternates one forward and one I. From the r-th
// backward on, each I is followed by the oldest pending W; the remaining Ws come last. Idle time
// per rank: (P-1)(F+I-W), where F, I and W are the times of one stage. Peak activations per rank,
// of one stage: min(V M, (V-1) R + P), which is min(8, 2 + 2) = 4 in the picture.
//
// Equal to PyTorch 2.11's ScheduleInterleavedZeroBubble cell for cell, including idle slots: r at
// the start, P-1-r after the warm-up, and those inserted by a final pass over all ranks in lockstep
// (`align`; PyTorch's _add_bubbles_to_actions), which delays each forward until the previous stage
// has run the microbatch in an earlier step. I and W are not delayed. Generated in linear time.
extern const ScheduleSpec kInterleavedZeroBubble;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_INTERLEAVED_ZERO_BUBBLE_H_
