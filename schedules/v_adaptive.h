#ifndef PIPEWRIGHT_SCHEDULES_V_ADAPTIVE_H_
#define PIPEWRIGHT_SCHEDULES_V_ADAPTIVE_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// V-Adaptive: the best V schedule of a family of building blocks for given times and a memory limit
// (Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, section 4.3; the
// authors' v_auto_schedule.py). Two stages per rank. V-Min, V-Half and a zero-bubble V are members
// of the family. Cost in slots where F, I and W take one slot each, 4 ranks, 8 microbatches:
//
//   memory in activations of one stage   4    5    6    7    8
//   cost                                59   57   53   51   48
//
// The limit is Shape::memory, which counts live activations of one stage per rank, from F to the
// end of W; by default that of V-Half, 2((P+2) div 2). At most 32 ranks. v_adaptive.cc describes
// the family. Linear in the number of actions: at most 2 million actions of brief schedules, and a
// few schedules of full length.
extern const ScheduleSpec kVAdaptive;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_V_ADAPTIVE_H_
