#ifndef PIPEWRIGHT_SCHEDULES_LOOPED_BFS_H_
#define PIPEWRIGHT_SCHEDULES_LOOPED_BFS_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// Breadth-first looped pipeline: all microbatches through a stage before the next one
// (Lamy-Poirier, arXiv 2211.05953). 2 ranks, 4 stages, 2 microbatches; the digit in front is the
// stage:
//
//   rank 0  0F0 0F1 2F0 2F1         2B1 2B0 0B1 0B0
//   rank 1      1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0
//
// Backwards run in reverse order. Each rank is idle for (P-1)(F+B), F and B being times of one of
// its V stages, so for a V-th of GPipe's; it keeps V M activations of a stage: here 4.
//
// Cell for cell PyTorch 2.11's ScheduleLoopedBFS: rank r starts with r idle slots, and has 2(P-1-r)
// before its backwards.
extern const ScheduleSpec kLoopedBfs;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_LOOPED_BFS_H_
