#include "pipewright/schedule/simulate/memory_model.h"

#include <algorithm>
#include <set>

namespace pipewright::schedule {
namespace {

using ir::ActionKind;
using ir::ActionPart;

bool has_kind(const ir::Schedule& schedule, ActionKind kind) {
  return std::ranges::any_of(schedule.rows, [kind](const ir::Row& row) {
    return std::ranges::any_of(row,
                               [kind](const ir::Action& action) { return action.kind() == kind; });
  });
}

}  // namespace

MemoryModel::MemoryModel(const ir::Schedule& schedule, const Costs& costs,
                         const Standstill* standstill)
    : schedule_(schedule),
      costs_(costs),
      standstill_(standstill),
      dependencies_(schedule.placement),
      copies_(schedule, costs),
      has_backward_(ir::has_backward(schedule)),
      has_receives_(has_kind(schedule, ActionKind::kRecvF) ||
                    has_kind(schedule, ActionKind::kRecvB)),
      held_throughout_(schedule.rows.size()) {
  if (has_kind(schedule, ActionKind::kUnshard)) return;
  for (int stage = 0; stage < schedule.placement.num_stages(); ++stage)
    held_throughout_[static_cast<size_t>(schedule.placement.rank_of(stage))] +=
        costs.parameter_bytes.at(stage);
}

std::vector<MemorySample> MemoryModel::along(const ir::Timeline& timeline, size_t rank) const {
  // First collects changes, then replaces them by their running sums.
  std::vector<MemorySample> changes;
  std::set<int> has_gradients;  // stages
  double held = held_throughout_[rank];
  const ir::Row& row = schedule_.rows[rank];
  const auto is_blocked = [&](size_t step) {
    return standstill_ != nullptr && standstill_->blocked[timeline.index(rank, step)];
  };
  size_t steps = 0;  // before the first compute that does not run
  while (steps < row.size() && !(ir::is_compute(row[steps].kind()) && is_blocked(steps))) ++steps;
  const std::vector<Copy> copies = copies_in(schedule_, copies_, timeline, rank, steps);
  for (const Copy& copy : copies) {
    if (!copy.is_reload)
      changes.push_back(
          {copy.time.end, static_cast<int>(copy.step), 0, -costs_.offloaded_bytes(copy.stage)});
  }
  for (size_t index = 0; index < row.size(); ++index) {
    if (row[index].is_idle()) continue;
    if (is_blocked(index)) continue;
    const int step = static_cast<int>(index);
    MemorySample begins{timeline.at(rank, index).start, step, 0, 0};
    MemorySample ends{timeline.at(rank, index).end, step, 0, 0};
    for (const ActionPart part : row[index].parts()) {
      const int stage = part.stage();
      const double activation = costs_.activation_bytes.at(stage);
      const double for_weight = costs_.weight_input_bytes.at(stage);
      const auto add_recomputed = [&] {
        begins.bytes += costs_.recomputed_bytes.at(stage);
        ends.bytes -= costs_.recomputed_bytes.at(stage);
      };
      const auto add_gradients = [&] {
        if (has_gradients.insert(stage).second) begins.bytes += costs_.gradient_bytes.at(stage);
      };
      switch (part.kind()) {
        case ActionKind::kForward:
          ++begins.activations;
          begins.bytes += activation;
          if (has_backward_) break;
          --ends.activations;
          ends.bytes -= activation;
          break;
        case ActionKind::kBackward:
          add_recomputed();
          add_gradients();
          --ends.activations;
          ends.bytes -= activation;
          break;
        case ActionKind::kBackwardInput:
          add_recomputed();
          ends.bytes += for_weight - activation;
          break;
        case ActionKind::kBackwardWeight:
          add_gradients();
          --ends.activations;
          ends.bytes -= for_weight;
          break;
        case ActionKind::kUnshard:
          begins.bytes += costs_.parameter_bytes.at(stage);
          break;
        case ActionKind::kReshard:
          ends.bytes -= costs_.parameter_bytes.at(stage);
          break;
        case ActionKind::kReduceGrad:
          if (has_gradients.erase(stage) > 0) ends.bytes -= costs_.gradient_bytes.at(stage);
          break;
        case ActionKind::kRecvF:
          begins.bytes += costs_.output_bytes.at(stage - 1);
          break;
        case ActionKind::kRecvB:
          begins.bytes += costs_.input_gradient_bytes.at(stage + 1);
          break;
        case ActionKind::kSendF:
        case ActionKind::kSendB:
        case ActionKind::kWaitSendF:
        case ActionKind::kWaitSendB:
        case ActionKind::kWaitReduceGrad:
        case ActionKind::kIdle:
        case ActionKind::kOverlapFB:
          break;
      }
      if (!has_receives_ || !ir::is_compute(part.kind())) continue;
      // A receive buffer is freed at the end of the compute that used it.
      for (const ir::StageDependencies::Need& need : dependencies_.of(part)) {
        if (!need.of_other_rank) continue;
        ends.bytes -= need.result == ir::Result::kOutput
                          ? costs_.output_bytes.at(need.stage)
                          : costs_.input_gradient_bytes.at(need.stage);
      }
    }
    changes.push_back(begins);
    changes.push_back(ends);
  }
  for (const Copy& copy : copies) {
    if (copy.is_reload)
      changes.push_back(
          {copy.time.start, static_cast<int>(copy.step), 0, costs_.offloaded_bytes(copy.stage)});
  }
  // The sort is stable, so at equal times an action ends before the next one in the row starts.
  std::ranges::stable_sort(changes, {}, &MemorySample::time);
  int activations = 0;
  for (MemorySample& sample : changes) {
    sample.activations = activations += sample.activations;
    sample.bytes = held += sample.bytes;
  }
  return changes;
}

}  // namespace pipewright::schedule
