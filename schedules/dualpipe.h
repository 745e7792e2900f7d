#ifndef PIPEWRIGHT_SCHEDULES_DUALPIPE_H_
#define PIPEWRIGHT_SCHEDULES_DUALPIPE_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// DeepSeek's DualPipe (arXiv 2412.19437, github.com/deepseek-ai/DualPipe) holds two replicas of the
// model, which run in opposite directions: rank r has stage r of replica 0 and stage P-1-r of
// replica 1. A forward of one runs concurrently with a backward of the other, so that each hides
// the communication of the other. 2 ranks, 2 stages, 8 microbatches, of which replica 0 runs 0 to
// 3; (0F2|1B4) is a compound:
//
//   rank 0  0F0 1F4 0F1 1B4 (1F5|0B0) (0F2|1B5) (1F6|0B1) (0F3|1B6) (1F7|0B2) 1B7 0I3 0W3
//   rank 1  1F... the same with the replicas exchanged
//
// Warm-up: with H = P/2 and h the distance to the nearer end, min(r, P-1-r), rank r runs 2(H-1-h)
// forwards of the replica that begins nearer to it, then h+1 of both in turn, then H-1-h times I, W
// and F of the other one. Idle time per rank: (H-1)(F&B + B - 3W), where F&B is the time of a
// compound. Peak activations per rank: P+1. Needs an even number of ranks, and of microbatches, at
// least 2P.
//
// DualPipeV is DualPipe cut in half and folded into a V placement of two stages per rank: its arms
// are what the replicas are there, so the rows of P ranks are those of one half of 2P. 2 ranks, 4
// stages, 4 microbatches:
//
//   rank 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 (0F3|3B1) (3F2|0B0) 3B2 (3F3|0B1) 3B3 0I2 0W2 0I3 0W3
//   rank 1  1F0 2F0 1F1 2F1 1F2 2B0 (2F2|1B0) (1F3|2B1) (2F3|1B1) 2B2 1B2 2I3 1I3 2W3 1W3
//
// Warm-up: rank r runs 2(P-1-r) forwards of its first stage, then r+1 of both in turn, then P-1-r
// times I, W and F of its second stage. Idle time per rank: (P-1)(F&B + B - 3W), where F&B is the
// time of a compound. Peak activations per rank, of one stage: 2P+1, 5 in the picture. Needs M >=
// 2P.
//
// DualPipeV is equal to PyTorch 2.11's ScheduleDualPipeV cell for cell; DualPipe to the steps of
// deepseek-ai/DualPipe. Neither has idle slots. Generated in linear time.
extern const ScheduleSpec kDualPipe;
extern const ScheduleSpec kDualPipeV;

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_DUALPIPE_H_
