#ifndef PIPEWRIGHT_IR_ACTION_KIND_H_
#define PIPEWRIGHT_IR_ACTION_KIND_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "pipewright/ir/check.h"

// What a rank can be told to do. The tokens are those of torch.distributed.pipelining (2.11); the
// list itself is ir/action_kinds.def. Everything here is constant data: any thread may use it.

namespace pipewright::ir {

enum class ActionKind : uint8_t {
  kIdle = 0,  // an empty slot of a compute order; has no token
#define PW_ACTION_KIND(enumerator, token, group, microbatch, meaning) enumerator,
#include "pipewright/ir/action_kinds.def"
#undef PW_ACTION_KIND
};

enum class ActionGroup : uint8_t {
  kCompute,       // runs the stage's module: all that a ComputeOrder holds
  kDataParallel,  // works on the stage's parameters over its data-parallel group
  kSend,          // posts a tensor to the rank of a neighbouring stage
  kReceive,       // takes one from there
};

struct ActionKindInfo {
  ActionKind kind;
  std::string_view token;
  ActionGroup group;
  bool has_microbatch;
  std::string_view meaning;
};

inline constexpr ActionKindInfo kActionKinds[] = {
#define PW_ACTION_KIND(enumerator, token, group, microbatch, meaning) \
  {ActionKind::enumerator, token, ActionGroup::group, microbatch, meaning},
#include "pipewright/ir/action_kinds.def"
#undef PW_ACTION_KIND
};

// All kinds but kIdle, in the order of the table.
inline std::span<const ActionKindInfo> action_kinds() { return kActionKinds; }

// `kind` must not be kIdle. Inline, as are the questions below: parsers and passes ask for every
// action.
inline const ActionKindInfo& info(ActionKind kind) {
  PW_CHECK(kind != ActionKind::kIdle, "an idle slot has no row in the table of action kinds");
  return kActionKinds[static_cast<size_t>(kind) - 1];
}

// The kind that is written as `token`, exactly ("F", "SEND_F"); none if there is no such kind.
std::optional<ActionKind> kind_of_token(std::string_view token);

// The kinds of a group, a bit each.
constexpr uint32_t kinds_of_group(ActionGroup group) {
  uint32_t kinds = 0;
  for (const ActionKindInfo& row : kActionKinds) {
    if (row.group == group) kinds |= 1u << static_cast<uint32_t>(row.kind);
  }
  return kinds;
}

inline bool is_compute(ActionKind kind) {
  constexpr uint32_t kCompute = kinds_of_group(ActionGroup::kCompute);
  return (kCompute >> static_cast<uint32_t>(kind) & 1) != 0;
}
inline bool is_send(ActionKind kind) {
  return kind == ActionKind::kSendF || kind == ActionKind::kSendB;
}
inline bool is_receive(ActionKind kind) {
  return kind == ActionKind::kRecvF || kind == ActionKind::kRecvB;
}
inline bool is_transfer(ActionKind kind) { return is_send(kind) || is_receive(kind); }

inline bool is_backward(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput ||
         kind == ActionKind::kBackwardWeight;
}

// B or W: the last part of the backward of a stage and microbatch. It adds to the gradients of the
// weights, and the microbatch's activation can be freed after it.
inline bool completes_backward(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardWeight;
}

// B or I: what gives the gradient that the stage before waits for.
inline bool gives_input_gradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput;
}

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_ACTION_KIND_H_
