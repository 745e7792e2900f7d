#ifndef PIPEWRIGHT_SCHEDULE_LOWERING_ADD_REDUCE_GRAD_H_
#define PIPEWRIGHT_SCHEDULE_LOWERING_ADD_REDUCE_GRAD_H_

#include <optional>

#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

// Where a rank awaits a REDUCE_GRAD.
enum class ReduceWaits {
  kNone,      // nowhere: its gradients are used after the step
  kAtOnce,    // right after it
  kDeferred,  // before the next one of the rank, the last one at the end of the row
};

// Adds a REDUCE_GRAD, which reduces the gradients of a stage over its data-parallel group, after
// the last B or W that adds to them, as PyTorch does. With `every` (at least 1), also after every
// `every`-th B or W. Two microbatches:
//
//   before  0F0 0F1 0B0 0B1
//   after   0F0 0F1 0B0 0B1 0REDUCE_GRAD
//
// With `waits`, also WAIT_REDUCE_GRADs, as PyTorch 2.15 does (_add_reduce_grad).
//
// A pure function, linear in the number of actions.
ir::Program add_reduce_grad(ir::Program program, std::optional<int> every,
                            ReduceWaits waits = ReduceWaits::kNone);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_LOWERING_ADD_REDUCE_GRAD_H_
