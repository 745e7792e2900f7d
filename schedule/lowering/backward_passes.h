#ifndef PIPEWRIGHT_SCHEDULE_LOWERING_BACKWARD_PASSES_H_
#define PIPEWRIGHT_SCHEDULE_LOWERING_BACKWARD_PASSES_H_

#include "pipewright/ir/schedule.h"

// Passes from orders to orders that change what a backward is made of. Pure functions, linear in
// the number of actions; idle slots are dropped, as what stood in step before does not any more.

namespace pipewright::schedule {

// Makes one B of an I and a W of the same stage and microbatch that stand next to each other
// (PyTorch's _merge_bw):
//
//   before  0F0 0I0 0W0 0I1 0F1 0W1
//   after   0F0 0B0 0I1 0F1 0W1
ir::ComputeOrder merge_backward(ir::ComputeOrder order);

// Makes an I and a W of every B, in compounds too, where the W follows the compound:
//
//   before  0B0 (0F2;1B1)OVERLAP_F_B
//   after   0I0 0W0 (0F2;1I1)OVERLAP_F_B 1W1
ir::ComputeOrder split_backward(ir::ComputeOrder order);

// Leaves the forwards alone, for evaluation:
//
//   before  0F0 0F1 0B0 (0F2;1B1)OVERLAP_F_B
//   after   0F0 0F1 0F2
ir::ComputeOrder forward_only(ir::ComputeOrder order);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_LOWERING_BACKWARD_PASSES_H_
