#include "pipewright/schedule/verify/passed_actions.h"

#include <algorithm>

#include "pipewright/ir/dependencies.h"

namespace pipewright::schedule {
namespace {

using ir::ActionKind;
using ir::ActionPart;

// The bits of a kind in a cell; 0 for kinds that are not counted. A B is an I and a W.
constexpr uint16_t bits_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return 1;
    case ActionKind::kBackwardInput:
      return 2;
    case ActionKind::kBackwardWeight:
      return 4;
    case ActionKind::kBackward:
      return 2 | 4;
    case ActionKind::kSendF:
      return 8;
    case ActionKind::kRecvF:
      return 16;
    case ActionKind::kSendB:
      return 32;
    case ActionKind::kRecvB:
      return 64;
    case ActionKind::kWaitSendF:
      return 128;
    case ActionKind::kWaitSendB:
      return 256;
    case ActionKind::kOverlapFB:
    case ActionKind::kUnshard:
    case ActionKind::kReshard:
    case ActionKind::kReduceGrad:
    case ActionKind::kWaitReduceGrad:
    case ActionKind::kIdle:
      return 0;
  }
  return 0;
}
constexpr uint16_t kForward = bits_of(ActionKind::kForward),
                   kInput = bits_of(ActionKind::kBackwardInput),
                   kBackward = bits_of(ActionKind::kBackward);

}  // namespace

PassedActions::PassedActions(const ir::Schedule& schedule, ir::Level level)
    : schedule_(schedule),
      num_microbatches_(static_cast<size_t>(schedule.num_microbatches)),
      entries_(static_cast<size_t>(schedule.placement.num_stages()) * kKindsPerStage),
      cells_(static_cast<size_t>(schedule.placement.num_stages()) * num_microbatches_) {
  for (int stage = 0; stage < schedule.placement.num_stages(); ++stage) {
    for (const ir::ActionKindInfo& row : ir::action_kinds()) {
      if (bits_of(row.kind) != 0) fill({row.kind, stage}, level);
    }
  }
}

void PassedActions::fill(ActionPart part, ir::Level level) {
  const ir::Placement& placement = schedule_.placement;
  Entry& filled = entries_[stage_kind(part)];
  filled.own = bits_of(part.kind());
  if (ir::is_wait(part.kind())) filled.of_stage = bits_of(ir::awaited_by(part).kind());
  for (const ir::Need& need : ir::needs_of(part, placement)) {
    const bool output = need.result == ir::Result::kOutput;
    const uint16_t made = output ? kForward : kInput;
    if (need.stage == part.stage()) {
      filled.of_stage |= made;
    } else if (need.rank == placement.rank_of(part.stage())) {
      filled.of_neighbor = made;
      filled.to_neighbor =
          (need.stage - part.stage()) * static_cast<std::ptrdiff_t>(num_microbatches_);
    } else if (level == ir::Level::kComputeComms) {
      filled.of_stage |= bits_of(output ? ActionKind::kRecvF : ActionKind::kRecvB);
    }
  }
}

bool PassedActions::is_complete() const {
  const uint16_t complete = ir::has_backward(schedule_) ? kForward | kBackward : kForward;
  return std::ranges::all_of(
      cells_, [&](uint16_t cell) { return (cell & (kForward | kBackward)) == complete; });
}

bool PassedActions::has_enough(const ir::Schedule& schedule) {
  size_t actions = 0;
  for (const ir::Row& row : schedule.rows) actions += row.size();
  const size_t cells = static_cast<size_t>(schedule.placement.num_stages()) *
                       static_cast<size_t>(schedule.num_microbatches);
  return 2 * actions >= cells;  // a compound has two parts
}

}  // namespace pipewright::schedule
