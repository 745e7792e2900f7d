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

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_LOWERING_LOWER_H_
