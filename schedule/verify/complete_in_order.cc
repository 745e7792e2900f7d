#include "pipewright/schedule/verify/complete_in_order.h"

#include <algorithm>

#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/walk.h"
#include "pipewright/schedule/graph/edge_transfers.h"
#include "pipewright/schedule/verify/verify_checks.h"

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

// Valid schedules are the common case, and deciding that one is valid takes less than finding and
// wording what is wrong. WorkIndex and the other checks look for errors only if these find one.
//
// A program whose queues are one per peer and direction is decided by one walk along all of its
// rows. A rank goes on until a compute awaits an input that has not been sent, or a WAIT a SEND
// that has not been received, and the other end wakes it. So the walk posts each SEND and RECV
// after the computes and WAITs before it, and passes each of those after the transfers that it
// waits for: if all ranks reach their ends, that is an order in which the program runs, whatever
// the capacity. A walk that stops, or in which a SEND and a RECV do not meet, proves nothing here;
// ChannelGraph decides then. Linear in the number of actions.

bool is_complete_in_order(const ir::Schedule& schedule, ir::Level level) {
  if (!PassedActions::has_enough(schedule)) return false;
  PassedActions passed(schedule, level);
  const PassedActions::Marks marks = passed.marks();
  bool valid = true;
  for (const ir::Row& row : schedule.rows) {
    for (const ir::Action& action : row) valid &= marks.pass(action);
    if (!valid) return false;
  }
  return passed.is_complete();
}

bool runs_on_edges(const ir::Program& program) {
  if (!PassedActions::has_enough(program) || !EdgeTransfers::fit(program)) return false;
  EdgeTransfers transfers(program);
  PassedActions passed(program, ir::Level::kComputeComms);
  const PassedActions::Marks marks = passed.marks();
  const bool awaits_sends = (ir::kinds_in(program.rows) & ir::kSendWaits) != 0;
  bool valid = true;
  size_t sends = 0, waits = 0;
  ir::Walk walk(program.rows);
  const auto pass = [&](size_t, const ir::Action& action, uint32_t number) {
    const ir::ActionKind kind = action.kind();
    if (ir::is_compute(kind) && transfers.awaits(action)) return false;
    if (ir::is_wait_send(kind)) {
      if (transfers.is_pending(ir::awaited_by(action.parts()[0]))) return false;
      ++waits;
    }
    valid &= marks.pass(action);
    if (!ir::is_transfer(kind)) return true;
    const ir::ActionPart part = action.parts()[0];
    sends += ir::is_send(kind) ? 1 : 0;
    if (transfers.post(part, number) != EdgeTransfers::kNone && (ir::is_send(kind) || awaits_sends))
      walk.wake(transfers.peer_of(part));
    return true;
  };
  return walk.run(pass) && valid && transfers.all_matched() && passed.is_complete() &&
         (waits == 0 || waits == sends);
}

}  // namespace pipewright::schedule
