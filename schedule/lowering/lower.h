#ifndef PIPEWRIGHT_SCHEDULE_LOWERING_LOWER_H_
#define PIPEWRIGHT_SCHEDULE_LOWERING_LOWER_H_

#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/lowering.h"
#include "pipewright/ir/schedule.h"

// Lowering: from a compute order to a program, as a list of passes. Each pass is a plain function
// in a header of its own.

namespace pipewright::schedule {

// Called after each pass with its name and its result.
using PassObserver = std::function<void(std::string_view pass, const ir::AnySchedule& schedule)>;

// The names of all passes, in the order in which they run. The passes from orders to orders and
// latest_receives run only if the policies ask for them.
std::span<const std::string_view> pass_names();

// Runs the passes from orders to orders that the policies ask for: forward_only, merge_backward,
// split_backward.
ir::ComputeOrder transform_order(ir::ComputeOrder order, const ir::Lowering& policies,
                                 const PassObserver& observer = nullptr);

// Runs all passes. A policy that is not set is PyTorch's; the program records the policies used.
// Returns nothing, and adds errors, if the order cannot run to its end.
std::optional<ir::Program> lower(const ir::ComputeOrder& order, const ir::Lowering& policies,
                                 ir::Diagnostics* diagnostics,
                                 const PassObserver& observer = nullptr);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_LOWERING_LOWER_H_
