#ifndef PIPEWRIGHT_SCHEDULES_INTERLEAVED_1F1B_H_
#define PIPEWRIGHT_SCHEDULES_INTERLEAVED_1F1B_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// Interleaved 1F1B: 1F1B over V stages a rank (Narayanan et al., arXiv 2104.04473). 2 ranks, 4
// stages, 4 microbatches; the digit in front is the stage:
//
//   rank 0  0F0 0F1 2F0 2F1 0F2     2B0 0F3 2B1 2F2 0B0 2F3 0B1     2B2     2B3     0B2     0B3
//   rank 1      1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3     1B2     1B3
//
// Rank r runs min((V-1) R + 2(P-1-r), V M) forwards first, with R = M div max(1, M div P)
// microbatches a round, then a forward and a backward in turn. Each rank is idle for (P-1)(F+B), F
// and B being times of one of its V stages, and keeps min(V M, (V-1) R + 2(P-1-r) + 1) activations
// of a stage: rank 0 of the picture min(8, 2 + 2 + 1) = 5.
//
// Cell for cell PyTorch 2.11's ScheduleInterleaved1F1B: r idle slots first, some behind the warm-up
// so that the ranks stand in step, and one before each backward of the cool-down.
//
// With a group size or an extra warm-up it is Megatron-LM's, without idle slots: R is the group
// size (microbatch_group_size_per_vp_stage), the last round may be short, and an extra warm-up
// keeps one activation more, so that communication of a forward can run beside a backward. Peaks:
// min(V M, (V-1) R + 2(P-1-r) + 1), and one more inside the min.
extern const ScheduleSpec kInterleaved1F1B;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_INTERLEAVED_1F1B_H_
