#ifndef PIPEWRIGHT_IR_ACTION_H_
#define PIPEWRIGHT_IR_ACTION_H_

#include <compare>
#include <cstdint>
#include <span>

#include "pipewright/ir/action_kind.h"

// One step of one rank's schedule, as a 16-byte value, so that 10^8 actions fit in the memory of a
// workstation.
//
//   0F3                     forward pass of stage 0 on microbatch 3
//   1UNSHARD                all-gather of stage 1's parameters
//   2SEND_F5                send stage 2's output for microbatch 5 to stage 3
//   (0F3;3B1)OVERLAP_F_B    a compound: a forward and a backward that run concurrently
//
// As in PyTorch, the stage of a SEND or RECV is the local one: 2SEND_F5 runs on the rank of stage 2
// and 3RECV_F5 on the rank of stage 3. Actions are plain values; no thread rules apply.

namespace pipewright::ir {

inline constexpr int kMaxStages = 1 << 20;        // stage < kMaxStages
inline constexpr int kMaxMicrobatches = 1 << 28;  // microbatch < kMaxMicrobatches

// An action that is not a compound, or one of the two parts of a compound. Eight bytes.
class ActionPart {
 public:
  constexpr ActionPart() = default;  // kIdle

  // Indices must be in range, which is not checked. `microbatch` must be 0 for kinds that have no
  // microbatch; `kind` must not be kOverlapFB.
  constexpr ActionPart(ActionKind kind, int stage, int microbatch = 0)
      : bits_(static_cast<uint64_t>(kind) | static_cast<uint64_t>(stage) << 8 |
              static_cast<uint64_t>(microbatch) << 32) {}

  constexpr ActionKind kind() const { return static_cast<ActionKind>(bits_ & 0xff); }
  constexpr int stage() const { return static_cast<int>(bits_ >> 8 & (kMaxStages - 1)); }
  // 0 for kinds that have no microbatch.
  constexpr int microbatch() const { return static_cast<int>(bits_ >> 32); }

  // Orders by microbatch, stage, kind.
  friend constexpr auto operator<=>(const ActionPart&, const ActionPart&) = default;

 private:
  // From the most significant bit: 4 zero bits, microbatch 28, 4 zero bits, stage 20, kind 8.
  uint64_t bits_ = 0;
};

// What a WAIT waits for: the SEND_F, SEND_B or REDUCE_GRAD of its stage and microbatch.
constexpr ActionPart awaited_by(ActionPart wait) {
  const ActionKind kind = wait.kind() == ActionKind::kWaitSendF   ? ActionKind::kSendF
                          : wait.kind() == ActionKind::kWaitSendB ? ActionKind::kSendB
                                                                  : ActionKind::kReduceGrad;
  return {kind, wait.stage(), wait.microbatch()};
}
// The WAIT for a SEND or REDUCE_GRAD.
constexpr ActionPart wait_for(ActionPart operation) {
  const ActionKind kind = operation.kind() == ActionKind::kSendF   ? ActionKind::kWaitSendF
                          : operation.kind() == ActionKind::kSendB ? ActionKind::kWaitSendB
                                                                   : ActionKind::kWaitReduceGrad;
  return {kind, operation.stage(), operation.microbatch()};
}

// An action: idle, a single part, or a compound of exactly two parts.
class Action {
 public:
  constexpr Action() = default;                            // an idle slot
  constexpr Action(ActionPart part) : parts_{part, {}} {}  // NOLINT: implicit on purpose
  constexpr Action(ActionKind kind, int stage, int microbatch = 0)
      : parts_{ActionPart(kind, stage, microbatch), {}} {}

  // Returns `(first;second)OVERLAP_F_B`. Neither part may be idle.
  static constexpr Action overlap(ActionPart first, ActionPart second) {
    Action action;
    action.parts_[0] = first;
    action.parts_[1] = second;
    return action;
  }

  constexpr bool is_idle() const { return parts_[0].kind() == ActionKind::kIdle; }
  constexpr bool is_compound() const { return parts_[1].kind() != ActionKind::kIdle; }
  // kOverlapFB for a compound, otherwise the kind of the single part.
  constexpr ActionKind kind() const {
    return is_compound() ? ActionKind::kOverlapFB : parts_[0].kind();
  }

  // The parts: empty for an idle slot, two for a compound, otherwise one. The span points into this
  // Action, so do not keep it beyond a temporary's full expression.
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
