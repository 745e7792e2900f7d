#ifndef PIPEWRIGHT_SCHEDULES_ZBV_ZERO_BUBBLE_H_
#define PIPEWRIGHT_SCHEDULES_ZBV_ZERO_BUBBLE_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// ZB-V: zero bubble on a V of two stages a rank (Qi et al., arXiv 2401.10241, section 6). 2 ranks,
// 4 stages, 3 microbatches; stages 0 and 3 are on rank 0, 1 and 2 on rank 1:
//
//   rank 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2
//   rank 1      1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2
//
// No rank is idle between its first and last action where F = I = W and transfers take no time.
// Rank r keeps min(2P, 2M, M+1+r) activations of a stage: here 4 on both.
//
// Cell for cell PyTorch 2.11's ScheduleZBVZeroBubble: made for max(2P-1, M) microbatches, with idle
// slots in place of those that there are not.
extern const ScheduleSpec kZbvZeroBubble;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_ZBV_ZERO_BUBBLE_H_
