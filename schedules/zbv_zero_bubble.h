#ifndef PIPEWRIGHT_SCHEDULES_ZBV_ZERO_BUBBLE_H_
#define PIPEWRIGHT_SCHEDULES_ZBV_ZERO_BUBBLE_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// ZB-V: zero bubble with two stages per rank in a V placement, for the peak memory of 1F1B (Qi et
// al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 6). 2 ranks, 4 stages, 3
// microbatches; stages 0 and 3 are on rank 0, 1 and 2 on rank 1:
//
//   rank 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2
//   rank 1      1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2
//
// Warm-up: rank r runs 2(P-r)-1 forwards of its first stage, then r alternating forwards of both,
// then P-r times F, I and W of its second stage. Idle time of a rank between its first and last
// action: 0 if F = I = W and transfers take no time. Peak activations on rank r, of one stage:
// min(2P, 2M, M+1+r), which is 4 on both ranks of the picture.
//
// Equal to PyTorch 2.11's ScheduleZBVZeroBubble cell for cell, which follows the authors'
// handcrafted_zb_v.py: the order is generated for max(2P-1, M) microbatches, and actions of
// microbatches that do not exist become idle slots. Generated in linear time.
extern const ScheduleSpec kZbvZeroBubble;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_ZBV_ZERO_BUBBLE_H_
