#ifndef PIPEWRIGHT_SCHEDULES_V_HALF_H_
#define PIPEWRIGHT_SCHEDULES_V_HALF_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// V-Half: a V schedule with half of 1F1B's peak activations (Qi et al., Pipeline Parallelism with
// Controllable Memory, arXiv 2405.15362). 2 ranks, 3 microbatches, F = I = W; stages 0 and 3 are on
// rank 0, 1 and 2 on rank 1:
//
//   rank 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 0I0 3W1 0W0 3F2 3I2 0I1 3W2 0I2 0W1 0W2
//   rank 1      1F0 2F0 1F1 2F1 2I0 1I0 2W0 1F2 1W0 2F2 2I1 1I1 2I2 1I2 2W1 1W1 2W2 1W2
//
// Generated from a building block (building_block.h) whose forwards go down the V with an offset of
// two slots per rank and come up with an offset of one; likewise the backwards. Peak activations
// per rank, of one stage: at most 2((P+2) div 2), 4 in the picture; for large P that is half of
// 1F1B's 2P. If F, I and W take the same time, the schedule attains the lower bound of the paper's
// figure 13, 6M + 6P - 3k - 1 slots for k activations, at P = 4 and P = 8: 53 slots for P = 4, M =
// 8.
extern const ScheduleSpec kVHalf;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_V_HALF_H_
