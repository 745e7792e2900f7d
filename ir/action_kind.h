#ifndef PIPEWRIGHT_IR_ACTION_KIND_H_
#define PIPEWRIGHT_IR_ACTION_KIND_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "pipewright/ir/check.h"

// The kinds of action that a rank can execute: F, B, I, W, SEND_F, UNSHARD, ...
//
// The list is ir/action_kinds.def; its tokens are those of torch.distributed.pipelining 2.15
// (_ComputationType in torch/distributed/pipelining/schedules.py); 2.11 has no WAITs. Constant data
// and pure functions: safe to use from any thread.

namespace pipewright::ir {

enum class ActionKind : uint8_t {
  kIdle = 0,  // an empty slot of a compute order; not an action, so it has no token
#define PW_ACTION_KIND(enumerator, token, group, microbatch, meaning) enumerator,
#include "pipewright/ir/action_kinds.def"
#undef PW_ACTION_KIND
};

enum class ActionGroup : uint8_t {
  kCompute,       // runs the stage's module; the only actions in a ComputeOrder
  kDataParallel,  // a collective or release of the stage's parameters or gradients
  kSend,          // sends a tensor to the rank of a neighbouring stage
  kReceive,       // receives a tensor from the rank of a neighbouring stage
  kWait,          // stops the rank until an earlier SEND or REDUCE_GRAD of its own has finished
};

// One row of ir/action_kinds.def.
struct ActionKindInfo {
  ActionKind kind;
  std::string_view token;  // as in text: "SEND_F"
  ActionGroup group;
  bool has_microbatch;       // whether the text of an action ends in a microbatch
  std::string_view meaning;  // one line, for help and documents
};

inline constexpr ActionKindInfo kActionKinds[] = {
#define PW_ACTION_KIND(enumerator, token, group, microbatch, meaning) \
  {ActionKind::enumerator, token, ActionGroup::group, microbatch, meaning},
#include "pipewright/ir/action_kinds.def"
#undef PW_ACTION_KIND
};

// All kinds except kIdle, in the order of the table.
inline std::span<const ActionKindInfo> action_kinds() { return kActionKinds; }

// The table row of a kind. Throws InternalError for kIdle, which has no row. This function and the
// predicates below are inline because parsers and passes call them for every action.
inline const ActionKindInfo& info(ActionKind kind) {
  PW_CHECK(kind != ActionKind::kIdle, "an idle slot has no row in the table of action kinds");
  return kActionKinds[static_cast<size_t>(kind) - 1];
}

// The kind whose token is exactly `token` ("F", "SEND_F"), or nullopt.
std::optional<ActionKind> kind_of_token(std::string_view token);

// A set of kinds: bit k is set for kind k.
using KindSet = uint32_t;
constexpr KindSet bit_of(ActionKind kind) { return KindSet{1} << static_cast<uint32_t>(kind); }
constexpr KindSet kinds_of_group(ActionGroup group) {
  KindSet kinds = 0;
  for (const ActionKindInfo& row : kActionKinds) {
    if (row.group == group) kinds |= bit_of(row.kind);
  }
  return kinds;
}
inline constexpr KindSet kComputes = kinds_of_group(ActionGroup::kCompute);
inline constexpr KindSet kDataParallel = kinds_of_group(ActionGroup::kDataParallel);
inline constexpr KindSet kWaits = kinds_of_group(ActionGroup::kWait);
inline constexpr KindSet kSendWaits =
    bit_of(ActionKind::kWaitSendF) | bit_of(ActionKind::kWaitSendB);

inline bool is_compute(ActionKind kind) { return (kComputes & bit_of(kind)) != 0; }
inline bool is_data_parallel(ActionKind kind) { return (kDataParallel & bit_of(kind)) != 0; }
inline bool is_send(ActionKind kind) {
  return kind == ActionKind::kSendF || kind == ActionKind::kSendB;
}
inline bool is_receive(ActionKind kind) {
  return kind == ActionKind::kRecvF || kind == ActionKind::kRecvB;
}
inline bool is_transfer(ActionKind kind) { return is_send(kind) || is_receive(kind); }

inline bool is_wait(ActionKind kind) { return (kWaits & bit_of(kind)) != 0; }
inline bool is_wait_send(ActionKind kind) { return (kSendWaits & bit_of(kind)) != 0; }

inline bool is_backward(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput ||
         kind == ActionKind::kBackwardWeight;
}

// B or W: the last part of the backward of a stage and microbatch. It adds to the gradients of the
// weights, and the microbatch's activation can be freed after it.
inline bool completes_backward(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardWeight;
}

// Whether an action of this kind (B or I) computes the gradient that the previous stage waits for.
inline bool gives_input_gradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput;
}

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_ACTION_KIND_H_
