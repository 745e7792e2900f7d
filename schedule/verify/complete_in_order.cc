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
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/tables.h"
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

// The actions that a walk along rows has passed, as bits per (stage, microbatch).
class PassedActions {
 public:
  PassedActions(const ir::Schedule& schedule, ir::Level level)
      : schedule_(schedule),
        one_slice_(schedule.slices == 1),
        num_microbatches_(static_cast<size_t>(schedule.num_microbatches)),
        entries_(schedule.placement),
        cells_(static_cast<size_t>(schedule.placement.num_stages()) * num_microbatches_) {
    for (int instance = 0; instance < schedule.placement.num_instances(); ++instance) {
      for (const ir::ActionKindInfo& row : ir::action_kinds()) {
        if (bits_of(row.kind) != 0)
          fill(ir::part_of(row.kind, instance, schedule.placement), level);
      }
    }
  }

  // Marks an action as passed. Returns whether its turn has come: what it needs of its own rank has
  // been passed, and it has not. Few branches depend on the action.
  template <typename Instances>
  [[gnu::always_inline]] bool pass(const ir::Action& action, size_t rank,
                                   const Instances& instances) {
    if (action.is_idle()) return true;
    const ActionPart first = action.parts()[0];
    const Entry& entry = entries_.at(first.kind(), instances.on(rank, first));
    if (entry.own == 0) return true;  // it may have no cell
    uint16_t* cell = cell_of(first);
    bool is_next = has_needs(entry, cell) && (one_slice_ || follows_slice(first, cell));
    if (action.is_compound()) {
      // A part of a compound cannot use a result of the other part.
      const ActionPart second = action.parts()[1];
      const Entry& other = entries_.at(second.kind(), instances.on(rank, second));
      uint16_t* other_cell = cell_of(second);
      is_next &= has_needs(other, other_cell) &&
                 (cell != other_cell || (entry.own & other.own) == 0) &&
                 (one_slice_ || follows_slice(second, other_cell));
      *other_cell |= other.own;
    }
    *cell |= entry.own;
    return is_next;
  }

  // Each (stage, microbatch) has one forward, and one backward unless there is none at all.
  bool is_complete() const {
    const uint16_t complete = ir::has_backward(schedule_) ? kForward | kBackward : kForward;
    return std::ranges::all_of(
        cells_, [&](uint16_t cell) { return (cell & (kForward | kBackward)) == complete; });
  }

 private:
  // What an action of a kind and instance requires, the same for every microbatch: that these bits
  // are set in the cell of its microbatch.
  struct Entry {
    uint16_t own = 0;
    uint16_t of_stage = 0;           // bits of its own stage
    uint16_t of_neighbor = 0;        // bits of another stage of the rank
    std::ptrdiff_t to_neighbor = 0;  // from the cell of its own stage to the other one
  };

  void fill(ActionPart part, ir::Level level) {
    const ir::Placement& placement = schedule_.placement;
    Entry& filled = entries_[part];
    filled.own = bits_of(part.kind());
    if (ir::is_wait(part.kind())) filled.of_stage = bits_of(ir::awaited_by(part).kind());
    for (const ir::Need& need : ir::needs_of(part, placement)) {
      const bool output = need.result == ir::Result::kOutput;
      const uint16_t made = output ? kForward : kInput;
      if (need.stage == part.stage()) {
        filled.of_stage |= made;
      } else if (need.rank == placement.rank_of(part.stage(), part.microbatch())) {
        filled.of_neighbor = made;
        filled.to_neighbor =
            (need.stage - part.stage()) * static_cast<std::ptrdiff_t>(num_microbatches_);
      } else if (level == ir::Level::kComputeComms) {
        filled.of_stage |= bits_of(output ? ActionKind::kRecvF : ActionKind::kRecvB);
      }
    }
  }
  static bool has_needs(const Entry& entry, const uint16_t* cell) {
    return ((*cell & (entry.own | entry.of_stage)) == entry.of_stage) &
           ((cell[entry.to_neighbor] & entry.of_neighbor) == entry.of_neighbor);
  }
  // Whether the slice that must come before `part`, whose cell is given, has been passed.
  bool follows_slice(ActionPart part, const uint16_t* cell) const {
    const auto before = ir::slice_before(part, schedule_.slices);
    const uint16_t made = part.kind() == ActionKind::kForward ? kForward : kInput;
    return !before || (cell[*before - part.microbatch()] & made) != 0;
  }
  uint16_t* cell_of(ActionPart part) {
    return cells_.data() + static_cast<size_t>(part.stage()) * num_microbatches_ +
           part.microbatch();
  }

  const ir::Schedule& schedule_;
  const bool one_slice_;
  const size_t num_microbatches_;
  ir::StageKindTable<Entry> entries_;
  std::vector<uint16_t> cells_;  // by stage and microbatch
};

// Whether a schedule has enough actions to be complete. One action with a huge microbatch index
// must not cost the memory of all the missing ones.
bool has_enough(const ir::Schedule& schedule) {
  size_t actions = 0;
  for (const ir::Row& row : schedule.rows) actions += row.size();
  const size_t cells = static_cast<size_t>(schedule.placement.num_stages()) *
                       static_cast<size_t>(schedule.num_microbatches);
  return 2 * actions >= cells;  // a compound has two parts
}

}  // namespace

bool is_complete_in_order(const ir::Schedule& schedule, ir::Level level) {
  if (!has_enough(schedule)) return false;
  return ir::with_instances(schedule.placement, [&](const auto& instances) {
    PassedActions passed(schedule, level);
    bool valid = true;
    for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
      for (const ir::Action& action : schedule.rows[rank])
        valid &= passed.pass(action, rank, instances);
      if (!valid) return false;
    }
    return passed.is_complete();
  });
}

bool runs_on_edges(const ir::Program& program, ir::KindSet kinds) {
  if (!has_enough(program) || !EdgeTransfers::fit(program)) return false;
  return ir::with_instances(program.placement, [&](const auto& instances) {
    EdgeTransfers transfers(program);
    PassedActions passed(program, ir::Level::kComputeComms);
    const bool awaits_sends = (kinds & ir::kSendWaits) != 0;
    bool valid = true;
    size_t sends = 0, waits = 0;
    ir::Walk walk(program.rows);
    const auto pass = [&](size_t rank, const ir::Action& action, uint32_t number) {
      const auto end_of = [&](ActionPart part) -> const EdgeTransfers::End& {
        return transfers.end_of(part.kind(), instances.on(rank, part));
      };
      const auto awaits = [&](ActionPart part) { return transfers.awaits(end_of(part), part); };
      const ir::ActionKind kind = action.kind();
      const ActionPart part = action.parts()[0];
      if (ir::is_compute(kind)) {
        if (awaits(part) || (action.is_compound() && awaits(action.parts()[1]))) return false;
      } else if (ir::is_wait_send(kind)) {
        const ActionPart send = ir::awaited_by(part);
        if (transfers.is_pending(end_of(send), send)) return false;
        ++waits;
      }
      valid &= passed.pass(action, rank, instances);
      if (!ir::is_transfer(kind)) return true;
      const EdgeTransfers::End& end = end_of(part);
      sends += ir::is_send(kind) ? 1 : 0;
      if (transfers.post(end, part, number) != EdgeTransfers::kNone &&
          (ir::is_send(kind) || awaits_sends))
        walk.wake(end.peer);
      return true;
    };
    return walk.run(pass) && valid && transfers.all_matched() && passed.is_complete() &&
           (waits == 0 || waits == sends);
  });
}

}  // namespace pipewright::schedule
