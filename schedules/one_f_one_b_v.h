#ifndef PIPEWRIGHT_SCHEDULES_ONE_F_ONE_B_V_H_
#define PIPEWRIGHT_SCHEDULES_ONE_F_ONE_B_V_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// 1F1B-V: a V schedule with two thirds of 1F1B's peak activations and whole backwards (Qi et al.,
// Pipeline Parallelism with Controllable Memory, arXiv 2405.15362; OLMo-core). 2 ranks, 3
// microbatches; stages 0 and 3 are on rank 0, 1 and 2 on rank 1:
//
//   rank 0  0F0 0F1 0F2 3F0 3B0---- 3F1 3B1----     0B0---- 3F2 3B2----     0B1----         0B2----
//   rank 1      1F0 2F0 1F1 2F1     2B0---- 1B0---- 1F2 2F2 2B1---- 1B1---- 2B2---- 1B2----
//
// Generated from a building block (building_block.h) of two forwards of one slot and two backwards
// of two slots per rank, which leaves no slot free. Peak activations per rank, of one stage: at
// most 2((2P+3) div 3), 4 in the picture. At unit cost it takes 63 slots for P = 4, M = 8; 1F1B
// takes 66.
extern const ScheduleSpec kOneFOneBV;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_ONE_F_ONE_B_V_H_
