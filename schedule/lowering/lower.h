#ifndef PIPEWRIGHT_SCHEDULE_LOWERING_LOWER_H_
#define PIPEWRIGHT_SCHEDULE_LOWERING_LOWER_H_

#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/lowering.h"
#include "pipewright/ir/schedule.h"

// The way from a compute order to a program: a list of passes, each a plain function in a header of
// its own.

namespace pipewright::schedule {

// Called with each pass's name and what it gave.
using PassObserver = std::function<void(std::string_view pass, const ir::AnySchedule& schedule)>;

// The passes' names, in the order in which they run. Those that change orders, and latest_receives,
// run where `policies` ask for them.
std::span<const std::string_view> pass_names();

// The passes that map orders to orders: forward_only, merge_backward, split_backward.
ir::ComputeOrder transform_order(ir::ComputeOrder order, const ir::Lowering& policies,
                                 const PassObserver& observer = nullptr);

// All passes. A policy that is not set is PyTorch's; the program records the ones that were used.
// None, with errors, where the order cannot be run.
std::optional<ir::Program> lower(const ir::ComputeOrder& order, const ir::Lowering& policies,
                                 ir::Diagnostics* diagnostics,
                                 const PassObserver& observer = nullptr);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_LOWERING_LOWER_H_
