#ifndef PIPEWRIGHT_SCHEDULE_LOWERING_LOWER_H_
#define PIPEWRIGHT_SCHEDULE_LOWERING_LOWER_H_

#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/lowering.h"
#include "pipewright/ir/schedule.h"

// Lowering: a list of passes from a compute order to a program. Each pass is a plain function; its
// header describes it.

namespace pipewright::schedule {

// Called after each pass with its name and its result.
using PassObserver = std::function<void(std::string_view pass, const ir::AnySchedule& schedule)>;

// The names of all passes, in the order in which they run. forward_only, merge_backward,
// split_backward, latest_receives, parity_receives and limit_sends run only if a policy enables
// them, add_wait_send not for torch 2.11.
std::span<const std::string_view> pass_names();

// Runs the passes that transform a compute order, if the policies enable them: forward_only,
// merge_backward, split_backward.
ir::ComputeOrder transform_order(ir::ComputeOrder order, const ir::Lowering& policies,
                                 const PassObserver& observer = nullptr);

// Runs all passes. An unset policy means the behaviour of the newest PyTorch, even if the order
// records one; the program records the policies used, not those that could not be followed. Returns
// nullopt and adds errors if the order cannot run to its end.
std::optional<ir::Program> lower(const ir::ComputeOrder& order, const ir::Lowering& policies,
                                 ir::Diagnostics* diagnostics,
                                 const PassObserver& observer = nullptr);

// The inverse of lowering: the computes of a program, without SEND, RECV, UNSHARD, RESHARD,
// REDUCE_GRAD and WAITs. The order records the policies of the program, so that compile() lowers it
// the same way again.
ir::ComputeOrder compute_order(ir::Program program);

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

// Adds a WAIT_SEND_F or WAIT_SEND_B for each SEND, where PyTorch 2.15 waits (_add_wait_send). A
// SEND_F is awaited after the B or I of its stage and microbatch, which shows that the next rank
// has used the output; all others at the end of the row, in the order of their SENDs. No wait then
// holds up its rank. Ranks of stages 0 and 1:
//
//   before  0F0 0SEND_F0 0RECV_B0 0B0                1RECV_F0 1F0 1B0 1SEND_B0
//   after   0F0 0SEND_F0 0RECV_B0 0B0 0WAIT_SEND_F0  1RECV_F0 1F0 1B0 1SEND_B0 1WAIT_SEND_B0
//
// A pure function, linear in the number of actions.
ir::Program add_wait_send(ir::Program program);

// Passes that merge, split or remove the backwards of a compute order. Pure
// functions, linear in the number of actions. Idle slots are dropped: the actions around them no
// longer run in step.

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

#endif  // PIPEWRIGHT_SCHEDULE_LOWERING_LOWER_H_
