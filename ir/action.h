#ifndef PIPEWRIGHT_IR_ACTION_H_
#define PIPEWRIGHT_IR_ACTION_H_

#include <compare>
#include <cstdint>
#include <span>

#include "pipewright/ir/action_kind.h"

// One step of one rank, as a 16-byte value: 10^8 of them fit a workstation.
//
//   0F3                     forward of stage 0 on microbatch 3
//   1UNSHARD                all-gather of stage 1's parameters
//   2SEND_F5                send stage 2's output of microbatch 5 to stage 3
//   (0F3;3B1)OVERLAP_F_B    a compound: two parts that run side by side
//
// The stage of a SEND or a RECV is the local one, as in PyTorch.
// Values: copy them freely, any thread.

namespace pipewright::ir {

inline constexpr int kMaxStages = 1 << 20;        // stage indices are below this
inline constexpr int kMaxMicrobatches = 1 << 28;  // microbatch indices are below this
inline constexpr int kMaxReplicas = 1 << 4;       // replica indices are below this

// An action that is not a compound. Eight bytes.
class ActionPart {
 public:
  constexpr ActionPart() = default;  // kIdle

  // Each index must be in its range; a kind without a microbatch takes 0. Not for kOverlapFB.
  constexpr ActionPart(ActionKind kind, int stage, int microbatch = 0, int replica = 0)
      : bits_(static_cast<uint64_t>(kind) | static_cast<uint64_t>(replica) << 8 |
              static_cast<uint64_t>(stage) << 12 | static_cast<uint64_t>(microbatch) << 32) {}

  constexpr ActionKind kind() const { return static_cast<ActionKind>(bits_ & 0xff); }
  constexpr int stage() const { return static_cast<int>(bits_ >> 12 & (kMaxStages - 1)); }
  // 0 for a kind that has none.
  constexpr int microbatch() const { return static_cast<int>(bits_ >> 32); }
  // Which copy of the stage, for placements that hold several. Text does not show it, as PyTorch
  // has no such thing.
  constexpr int replica() const { return static_cast<int>(bits_ >> 8 & (kMaxReplicas - 1)); }

  // Orders by microbatch, stage, replica, kind.
  friend constexpr auto operator<=>(const ActionPart&, const ActionPart&) = default;

 private:
  // From the top: 4 bits of 0, microbatch 28, stage 20, replica 4, kind 8.
  uint64_t bits_ = 0;
};

class Action {
 public:
  constexpr Action() = default;                            // an idle slot
  constexpr Action(ActionPart part) : parts_{part, {}} {}  // NOLINT: a part alone is an action
  constexpr Action(ActionKind kind, int stage, int microbatch = 0, int replica = 0)
      : parts_{ActionPart(kind, stage, microbatch, replica), {}} {}

  // `(first;second)OVERLAP_F_B`. Neither part may be idle.
  static constexpr Action overlap(ActionPart first, ActionPart second) {
    Action action;
    action.parts_[0] = first;
    action.parts_[1] = second;
    return action;
  }

  constexpr bool is_idle() const { return parts_[0].kind() == ActionKind::kIdle; }
  constexpr bool is_compound() const { return parts_[1].kind() != ActionKind::kIdle; }
  // kOverlapFB for a compound, else the kind of its one part.
  constexpr ActionKind kind() const {
    return is_compound() ? ActionKind::kOverlapFB : parts_[0].kind();
  }

  // None for an idle slot, two for a compound, else one. Of a temporary only inside the full
  // expression.
  constexpr std::span<const ActionPart> parts() const {
    return {parts_, is_idle() ? 0u : is_compound() ? 2u : 1u};
  }

  friend constexpr auto operator<=>(const Action&, const Action&) = default;

 private:
  ActionPart parts_[2];
};

static_assert(sizeof(ActionPart) == 8 && sizeof(Action) == 16);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_ACTION_H_
