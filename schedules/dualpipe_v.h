#ifndef PIPEWRIGHT_SCHEDULES_DUALPIPE_V_H_
#define PIPEWRIGHT_SCHEDULES_DUALPIPE_V_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// DualPipeV: DeepSeek's DualPipe cut in half and folded into a V placement of two stages per rank
// (github.com/deepseek-ai/DualPipe). A forward of one arm of the V runs concurrently with a
// backward of the other arm, so that each hides the communication of the other. 2 ranks, 4 stages,
// 4 microbatches; (3F2|0B0) is a compound:
//
//   rank 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 (0F3|3B1) (3F2|0B0) 3B2 (3F3|0B1) 3B3 0I2 0W2 0I3 0W3
//   rank 1  1F0 2F0 1F1 2F1 1F2 2B0 (2F2|1B0) (1F3|2B1) (2F3|1B1) 2B2 1B2 2I3 1I3 2W3 1W3
//
// Warm-up: rank r runs 2(P-1-r) forwards of its first stage, then r+1 of both in turn, then P-1-r
// times I, W and F of its second stage. Idle time per rank: (P-1)(F&B + B - 3W), where F&B is the
// time of a compound. Peak activations per rank, of one stage: 2P+1, 5 in the picture. Needs M >=
// 2P.
//
// Equal to PyTorch 2.11's ScheduleDualPipeV cell for cell; it has no idle slots. Generated in
// linear time.
extern const ScheduleSpec kDualPipeV;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_DUALPIPE_V_H_
