#ifndef PIPEWRIGHT_SCHEDULES_V_MIN_H_
#define PIPEWRIGHT_SCHEDULES_V_MIN_H_

#include <vector>

#include "pipewright/schedules/building_block.h"
#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// V-Min: a V schedule with a third of 1F1B's peak activations (Qi et al., Pipeline Parallelism with
// Controllable Memory, arXiv 2405.15362). 2 ranks, 3 microbatches, F = I = W; stages 0 and 3 are on
// rank 0, 1 and 2 on rank 1:
//
//   rank 0  0F0         3F0 3I0 3W0 0F1 0I0 0W0 3F1 3I1 3W1 0F2 0I1 0W1 3F2 3I2 3W2     0I2 0W2
//   rank 1      1F0 2F0         2I0 1I0 1F1 2F1 2W0 1W0 2I1 1I1 1F2 2F2 2W1 1W1 2I2 1I2 2W2 1W2
//
// Generated from a building block (building_block.h) in which each action starts as soon as the
// previous one ends, so that activations live as briefly as possible. Peak activations per rank, of
// one stage: at most 2((P+4) div 3), 4 in the picture; for large P that is a third of 1F1B's 2P. At
// unit cost it takes 59 slots for P = 4, M = 8. If F, I and W differ in time, it is slower than
// 1F1B.
extern const ScheduleSpec kVMin;

// The building block, one entry per rank.
std::vector<BlockSlots> v_min_block(int ranks);

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_V_MIN_H_
