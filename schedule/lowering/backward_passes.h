#ifndef PIPEWRIGHT_SCHEDULE_LOWERING_BACKWARD_PASSES_H_
#define PIPEWRIGHT_SCHEDULE_LOWERING_BACKWARD_PASSES_H_

#include "pipewright/ir/schedule.h"

// Passes that merge, split or remove the backwards of a compute order. Pure
// functions, linear in the number of actions. Idle slots are dropped: the actions around them no
// longer run in step.

namespace pipewright::schedule {

// Merges an I and the W directly after it, of the same stage and microbatch, into one B (PyTorch's
// _merge_bw):
//
//   before  0F0 0I0 0W0 0I1 0F1 0W1
//   after   0F0 0B0 0I1 0F1 0W1
ir::ComputeOrder merge_backward(ir::ComputeOrder order);

// Splits every B into an I and a W. The W of a B in a compound follows the compound:
//
//   before  0B0 (0F2;1B1)OVERLAP_F_B
//   after   0I0 0W0 (0F2;1I1)OVERLAP_F_B 1W1
ir::ComputeOrder split_backward(ir::ComputeOrder order);

// Keeps only the forwards, for evaluation:
//
//   before  0F0 0F1 0B0 (0F2;1B1)OVERLAP_F_B
//   after   0F0 0F1 0F2
ir::ComputeOrder forward_only(ir::ComputeOrder order);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_LOWERING_BACKWARD_PASSES_H_
