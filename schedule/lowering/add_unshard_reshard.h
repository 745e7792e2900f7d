#ifndef PIPEWRIGHT_SCHEDULE_LOWERING_ADD_UNSHARD_RESHARD_H_
#define PIPEWRIGHT_SCHEDULE_LOWERING_ADD_UNSHARD_RESHARD_H_

#include "pipewright/ir/lowering.h"
#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

struct ResidencyPolicy {
  // Stages of a rank that are unsharded at a time, from 1. A compound of two stages may need 2.
  int residency = 3;
  // Stages that are unsharded ahead: so many different ones from the next action on, from 1.
  int lookahead = 3;
  ir::Eviction evict = ir::Eviction::kPytorch;
};

// Gathers the parameters of each stage before they are used and frees them after. Idle slots are
// dropped. Residency and lookahead 2:
//
//   before  0F0 0F1 1F0 1F1 2F0
//   after   0UNSHARD 1UNSHARD 0F0 0F1 0RESHARD 2UNSHARD 1F0 1F1 1RESHARD 2F0 2RESHARD
//
// kPytorch frees a stage as soon as it is not among the next `residency` different stages in use
// (PyTorch 2.11's _add_unshard_reshard, whose residency and lookahead are both 3), ascending where
// several go.
// kFarthest frees a stage when it is not needed any more, or to make room: then the one whose next
// use is farthest away, which gives the fewest gathers that there can be (Belady, IBM Systems
// Journal 1966). Lookahead lets a gather come sooner where nothing that is needed before has to go.
//
// A pure function. Linear in the number of actions for a fixed number of stages a rank.
ir::Program add_unshard_reshard(const ir::ComputeOrder& order, const ResidencyPolicy& policy);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_LOWERING_ADD_UNSHARD_RESHARD_H_
