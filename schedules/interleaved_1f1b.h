#ifndef PIPEWRIGHT_SCHEDULES_INTERLEAVED_1F1B_H_
#define PIPEWRIGHT_SCHEDULES_INTERLEAVED_1F1B_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// Interleaved 1F1B: 1F1B with V stages per rank, which divides the idle time by V (Narayanan et
// al., arXiv 2104.04473). 2 ranks, 4 stages, 4 microbatches; the first digit is the stage:
//
//   rank 0  0F0 0F1 2F0 2F1 0F2     2B0 0F3 2B1 2F2 0B0 2F3 0B1     2B2     2B3     0B2     0B3
//   rank 1      1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3     1B2     1B3
//
// Warm-up: rank r runs min((V-1) R + 2(P-1-r), V M) forwards, with R = M div max(1, M div P)
// microbatches per round (interleaved.h). Then it alternates one forward and one backward, and ends
// with the remaining backwards. Idle time per rank: (P-1)(F+B), where F and B are the times of one
// stage. Peak activations on rank r, of one stage: min(V M, (V-1) R + 2(P-1-r) + 1), which is
// min(8, 2 + 2 + 1) = 5 on rank 0 of the picture.
//
// Equal to PyTorch 2.11's ScheduleInterleaved1F1B cell for cell, including idle slots: r at the
// start, then max(0, V P + 2(P-1-r) - (warm-up + r)) after the warm-up, which aligns the ranks, and
// one before each backward of the cool-down.
//
// With a group size or extra warm-up it is Megatron-LM's schedule, without idle slots. R is then
// the group size (microbatch_group_size_per_vp_stage), and the last round may be shorter. The extra
// warm-up forward allows communication of a forward to overlap with a backward; it adds one to the
// second term of the minimum for the peak. Generated in linear time.
extern const ScheduleSpec kInterleaved1F1B;

// The row of `rank` with so many forwards more in the warm-up, with PyTorch's idle slots or
// without.
ir::Row interleaved_1f1b_row(const Shape& shape, int rank, int extra_warmup, bool has_idle);

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_INTERLEAVED_1F1B_H_
