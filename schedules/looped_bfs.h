#ifndef PIPEWRIGHT_SCHEDULES_LOOPED_BFS_H_
#define PIPEWRIGHT_SCHEDULES_LOOPED_BFS_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// Looped BFS, a breadth-first pipeline: a rank runs all microbatches through one of its V stages
// before it continues with the next one (Lamy-Poirier, arXiv 2211.05953). 2 ranks, 4 stages, 2
// microbatches; the first digit is the stage:
//
//   rank 0  0F0 0F1 2F0 2F1         2B1 2B0 0B1 0B0
//   rank 1      1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0
//
// Backwards run in reverse order of stages and microbatches. Idle time per rank: (P-1)(F+B), where
// F and B are the times of one stage; with V stages per rank that is 1/V of GPipe's. Peak
// activations per rank: V M of one stage, 4 in the picture.
//
// Equal to PyTorch 2.11's ScheduleLoopedBFS cell for cell: rank r starts with r idle slots and has
// 2(P-1-r) idle slots before its first backward. Generated in linear time.
extern const ScheduleSpec kLoopedBfs;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_LOOPED_BFS_H_
