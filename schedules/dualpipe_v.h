#ifndef PIPEWRIGHT_SCHEDULES_DUALPIPE_V_H_
#define PIPEWRIGHT_SCHEDULES_DUALPIPE_V_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// DualPipeV: half of DeepSeek's DualPipe, folded to a V of two stages a rank
// (deepseek-ai/DualPipe). A forward of one arm runs beside a backward of the other, so that each
// hides the other's communication. 2 ranks, 4 stages, 4 microbatches, (3F2|0B0) being a compound:
//
//   rank 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 (0F3|3B1) (3F2|0B0) 3B2 (3F3|0B1) 3B3 0I2 0W2 0I3 0W3
//   rank 1  1F0 2F0 1F1 2F1 1F2 2B0 (2F2|1B0) (1F3|2B1) (2F3|1B1) 2B2 1B2 2I3 1I3 2W3 1W3
//
// Each rank is idle for (P-1)(F&B + B - 3W), F&B being the time of a compound, and keeps 2P+1
// activations of a stage: here 5.
//
// Cell for cell PyTorch 2.11's ScheduleDualPipeV, which has no idle slots.
extern const ScheduleSpec kDualPipeV;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_DUALPIPE_V_H_
