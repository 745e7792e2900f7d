// Valid schedules are the common case, and deciding that one is valid takes less than finding and
// wording what is wrong. A walk along the rows sets the bits of each action that it has passed, in
// a table with a byte per (stage, microbatch), and checks that the bits that an action needs are
// set and its own are not. WorkIndex and the other checks look for errors only if this finds one.
// Linear in the number of actions.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipewright/ir/dependencies.h"
#include "pipewright/schedule/verify/verify_checks.h"

namespace pipewright::schedule {
namespace {

using ir::ActionKind;
using ir::ActionPart;

// The bits of a kind in a cell; 0 for kinds that are not counted. A B is an I and a W.
constexpr uint8_t bits_of(ActionKind kind) {
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
    case ActionKind::kOverlapFB:
    case ActionKind::kUnshard:
    case ActionKind::kReshard:
    case ActionKind::kReduceGrad:
    case ActionKind::kIdle:
      return 0;
  }
  return 0;
}
constexpr uint8_t kForward = bits_of(ActionKind::kForward),
                  kInput = bits_of(ActionKind::kBackwardInput),
                  kBackward = bits_of(ActionKind::kBackward);

// What an action of a kind and stage requires, the same for every microbatch: that these bits are
// set in the cell of its microbatch.
struct Entry {
  uint8_t own = 0;
  uint8_t of_stage = 0;            // bits of its own stage
  uint8_t of_neighbor = 0;         // bits of another stage of the rank
  std::ptrdiff_t to_neighbor = 0;  // from the cell of its own stage to the other one
};

class Walk {
 public:
  Walk(const ir::Schedule& schedule, ir::Level level)
      : schedule_(schedule),
        num_microbatches_(static_cast<size_t>(schedule.num_microbatches)),
        entries_(static_cast<size_t>(schedule.placement.num_stages()) * kKinds),
        passed_(static_cast<size_t>(schedule.placement.num_stages()) * num_microbatches_) {
    for (int stage = 0; stage < schedule.placement.num_stages(); ++stage) {
      for (const ir::ActionKindInfo& row : ir::action_kinds()) {
        if (bits_of(row.kind) != 0) fill({row.kind, stage}, level);
      }
    }
  }

  bool run() {
    for (const ir::Row& row : schedule_.rows) {
      if (!passes(row, entries_.data(), passed_.data(), num_microbatches_)) return false;
    }
    return is_complete();
  }

 private:
  static constexpr size_t kKinds = std::bit_ceil(std::size(ir::kActionKinds) + 1);

  static size_t entry_index(ActionPart part) {
    return static_cast<size_t>(part.stage()) * kKinds + static_cast<size_t>(part.kind());
  }

  void fill(ActionPart part, ir::Level level) {
    const ir::Placement& placement = schedule_.placement;
    Entry& filled = entries_[entry_index(part)];
    filled.own = bits_of(part.kind());
    for (const ir::Need& need : ir::needs_of(part, placement)) {
      const bool output = need.result == ir::Result::kOutput;
      const uint8_t made = output ? kForward : kInput;
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

  // Few branches depend on the action. The parameters are not members because the compiler would
  // load those again after each write to a cell: bytes may be part of anything.
  static bool passes(const ir::Row& row, const Entry* entries, uint8_t* passed,
                     size_t num_microbatches) {
    const auto cell_of = [&](ActionPart part) {
      return passed + static_cast<size_t>(part.stage()) * num_microbatches + part.microbatch();
    };
    const auto is_next = [](const Entry& entry, const uint8_t* cell) {
      return ((*cell & (entry.own | entry.of_stage)) == entry.of_stage) &
             ((cell[entry.to_neighbor] & entry.of_neighbor) == entry.of_neighbor);
    };
    bool all = true;
    for (const ir::Action& action : row) {
      if (action.is_idle()) continue;
      const ActionPart first = action.parts()[0];
      const Entry& entry = entries[entry_index(first)];
      if (entry.own == 0) continue;  // it may have no cell
      uint8_t* cell = cell_of(first);
      all &= is_next(entry, cell);
      if (action.is_compound()) {
        // A part of a compound cannot use a result of the other part.
        const ActionPart second = action.parts()[1];
        const Entry& other = entries[entry_index(second)];
        uint8_t* other_cell = cell_of(second);
        all &= is_next(other, other_cell) && (cell != other_cell || (entry.own & other.own) == 0);
        *other_cell |= other.own;
      }
      *cell |= entry.own;
    }
    return all;
  }

  // Each (stage, microbatch) has one forward, and one backward unless there is none at all.
  bool is_complete() const {
    const uint8_t complete = ir::has_backward(schedule_) ? kForward | kBackward : kForward;
    return std::ranges::all_of(
        passed_, [&](uint8_t cell) { return (cell & (kForward | kBackward)) == complete; });
  }

  const ir::Schedule& schedule_;
  const size_t num_microbatches_;
  std::vector<Entry> entries_;   // by stage and kind
  std::vector<uint8_t> passed_;  // by stage and microbatch
};

}  // namespace

bool is_complete_in_order(const ir::Schedule& schedule, ir::Level level) {
  // One action with a huge microbatch index must not cost the memory of all the missing ones.
  size_t actions = 0;
  for (const ir::Row& row : schedule.rows) actions += row.size();
  const size_t cells = static_cast<size_t>(schedule.placement.num_stages()) *
                       static_cast<size_t>(schedule.num_microbatches);
  // A compound has two parts.
  return 2 * actions >= cells && Walk(schedule, level).run();
}

}  // namespace pipewright::schedule
