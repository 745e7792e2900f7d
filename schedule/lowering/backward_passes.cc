#include "pipewright/schedule/lowering/backward_passes.h"

#include <optional>
#include <utility>

namespace pipewright::schedule {
namespace {

using ir::Action;
using ir::ActionKind;
using ir::ActionPart;

// Rebuilds every row: `add(action, row)` appends what one action becomes. Idle slots are dropped.
template <typename Add>
ir::ComputeOrder rebuild(ir::ComputeOrder order, Add add) {
  for (ir::Row& row : order.rows) {
    ir::Row built;
    built.reserve(row.size());
    for (const Action& action : row) {
      if (!action.is_idle()) add(action, &built);
    }
    row = std::move(built);
  }
  return order;
}

ActionPart as(ActionKind kind, ActionPart part) {
  return {kind, part.stage(), part.microbatch(), part.replica()};
}

}  // namespace

ir::ComputeOrder merge_backward(ir::ComputeOrder order) {
  order.lowering.merge_backward = true;
  order.lowering.split_backward = std::nullopt;  // merging undoes it
  return rebuild(std::move(order), [](const Action& action, ir::Row* row) {
    if (action.kind() == ActionKind::kBackwardWeight && !row->empty()) {
      const ActionPart weight = action.parts()[0];
      if (row->back() == Action(as(ActionKind::kBackwardInput, weight))) {
        row->back() = as(ActionKind::kBackward, weight);
        return;
      }
    }
    row->push_back(action);
  });
}

ir::ComputeOrder split_backward(ir::ComputeOrder order) {
  order.lowering.split_backward = true;
  return rebuild(std::move(order), [](const Action& action, ir::Row* row) {
    ActionPart parts[2];
    ActionPart weights[2];
    size_t num_parts = 0;
    size_t num_weights = 0;
    for (const ActionPart part : action.parts()) {
      const bool whole = part.kind() == ActionKind::kBackward;
      parts[num_parts++] = whole ? as(ActionKind::kBackwardInput, part) : part;
      if (whole) weights[num_weights++] = as(ActionKind::kBackwardWeight, part);
    }
    row->push_back(num_parts == 2 ? Action::overlap(parts[0], parts[1]) : Action(parts[0]));
    for (size_t index = 0; index < num_weights; ++index) row->emplace_back(weights[index]);
  });
}

ir::ComputeOrder forward_only(ir::ComputeOrder order) {
  order.lowering.forward_only = true;
  return rebuild(std::move(order), [](const Action& action, ir::Row* row) {
    for (const ActionPart part : action.parts()) {
      if (part.kind() == ActionKind::kForward) row->emplace_back(part);
    }
  });
}

}  // namespace pipewright::schedule
