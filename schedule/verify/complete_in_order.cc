// Valid schedules are the common case, and deciding that one is valid takes less than finding and
// wording what is wrong. A walk along the rows keeps one bit per action that it has passed, in a
// table with a byte per (stage, microbatch), and checks that the bits that an action needs are set
// and its own is not. WorkIndex and the other checks look for errors only if this finds one. Linear
// in the number of actions.
#include <array>
#include <cstdint>
#include <vector>

#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/stage_microbatch_table.h"
#include "pipewright/schedule/verify/verify_checks.h"

namespace pipewright::schedule {
namespace {

using ir::ActionKind;
using ir::ActionPart;

// The bit of a kind in a cell; 0 for kinds that are not counted.
constexpr uint8_t bit_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return 1;
    case ActionKind::kBackward:
      return 2;
    case ActionKind::kBackwardInput:
      return 4;
    case ActionKind::kBackwardWeight:
      return 8;
    case ActionKind::kSendF:
      return 16;
    case ActionKind::kRecvF:
      return 32;
    case ActionKind::kSendB:
      return 64;
    case ActionKind::kRecvB:
      return 128;
    case ActionKind::kOverlapFB:
    case ActionKind::kUnshard:
    case ActionKind::kReshard:
    case ActionKind::kReduceGrad:
    case ActionKind::kIdle:
      return 0;
  }
  return 0;
}
constexpr uint8_t kForward = bit_of(ActionKind::kForward),
                  kBackward = bit_of(ActionKind::kBackward),
                  kInput = bit_of(ActionKind::kBackwardInput),
                  kWeight = bit_of(ActionKind::kBackwardWeight);

// One of these actions of a stage, and of the same microbatch, comes before on the rank.
struct Requirement {
  int stage = 0;
  uint8_t any_of = 0;  // bits; 0 for no requirement
};

// What an action of a kind and stage requires, the same for every microbatch.
struct Entry {
  uint8_t own = 0;
  std::array<Requirement, 2> requires_before;
};

class Walk {
 public:
  Walk(const ir::Schedule& schedule, ir::Level level)
      : schedule_(schedule),
        entries_(static_cast<size_t>(schedule.placement.num_stages()) * kKinds),
        passed_(schedule.placement, schedule.num_microbatches) {
    for (int stage = 0; stage < schedule.placement.num_stages(); ++stage) {
      for (const ir::ActionKindInfo& row : ir::action_kinds()) {
        if (bit_of(row.kind) != 0) fill({row.kind, stage}, level);
      }
    }
  }

  bool run() {
    for (const ir::Row& row : schedule_.rows) {
      for (const ir::Action& action : row) {
        const auto parts = action.parts();
        // A part of a compound cannot use a result of the other part.
        for (const ActionPart part : parts) {
          if (!is_next(part)) return false;
        }
        for (const ActionPart part : parts) {
          uint8_t& cell = passed_.at(part.stage(), part.microbatch());
          const uint8_t own = entry(part).own;
          if ((cell & own) != 0) return false;
          cell |= own;
        }
      }
    }
    return is_complete();
  }

 private:
  static constexpr size_t kKinds = std::size(ir::kActionKinds) + 1;

  Entry& entry(ActionPart part) {
    return entries_[static_cast<size_t>(part.stage()) * kKinds + static_cast<size_t>(part.kind())];
  }

  void fill(ActionPart part, ir::Level level) {
    const ir::Placement& placement = schedule_.placement;
    Entry& filled = entry(part);
    filled.own = bit_of(part.kind());
    size_t size = 0;
    for (const ir::Need& need : ir::needs_of(part, placement)) {
      const bool output = need.result == ir::Result::kOutput;
      if (need.rank == placement.rank_of(part.stage())) {
        const uint8_t makers = output ? kForward : kBackward | kInput;
        filled.requires_before[size++] = {need.stage, makers};
      } else if (level == ir::Level::kComputeComms) {
        filled.requires_before[size++] = {part.stage(),
                                          bit_of(output ? ActionKind::kRecvF : ActionKind::kRecvB)};
      }
    }
  }

  bool is_next(ActionPart part) {
    for (const Requirement& one : entry(part).requires_before) {
      if (one.any_of != 0 && (passed_.at(one.stage, part.microbatch()) & one.any_of) == 0)
        return false;
    }
    return true;
  }

  // Each (stage, microbatch) has one forward, and one backward unless there is none at all.
  bool is_complete() const {
    const bool has_backward = ir::has_backward(schedule_);
    for (size_t cell = 0; cell < passed_.size(); ++cell) {
      const uint8_t computes = passed_[cell] & (kForward | kBackward | kInput | kWeight);
      const bool complete = has_backward ? computes == (kForward | kBackward) ||
                                               computes == (kForward | kInput | kWeight)
                                         : computes == kForward;
      if (!complete) return false;
    }
    return true;
  }

  const ir::Schedule& schedule_;
  std::vector<Entry> entries_;  // by stage and kind
  ir::StageMicrobatchTable<uint8_t> passed_;
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
