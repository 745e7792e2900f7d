#ifndef PIPEWRIGHT_IR_DEPENDENCIES_H_
#define PIPEWRIGHT_IR_DEPENDENCIES_H_

#include <array>
#include <cstdint>
#include <optional>

#include "pipewright/ir/action.h"
#include "pipewright/ir/placement.h"

// The data dependencies of pipeline training: which results an action needs, which it produces, and
// on which rank. This is the only statement of these rules ("the oracle"): greedy generators, the
// lowering, the verifier, the simulator, explain and the drawings all query it.
//
// A pipeline splits a model into stages 0 to S-1 and a batch into microbatches. The forward pass of
// a microbatch runs through the stages in ascending order, each one passing its output to the next;
// the backward pass runs in descending order and passes gradients. For stage s and one microbatch:
//
//   action    needs                                            produces
//   F         output of stage s-1, unless s = 0                output of s
//   B         output of s (its own F, whose saved tensors      input gradient of s
//             it uses); input gradient of s+1, unless s = S-1
//   I         as B                                             input gradient and weight input of s
//   W         weight input of s                                (weight gradients; no action
//                                                              needs them)
//   SEND_F    output of s                                      -
//   SEND_B    input gradient of s                              -
//
// For example, with stages 0 1 2 3 on ranks 0 1 1 0 (placement v):
//
//   needs_of(3F5)     output of stage 2 for microbatch 5, produced on rank 1
//   transfer_of(2F5)  2SEND_F5 on rank 1, 3RECV_F5 on rank 0
//   transfer_of(1F5)  none: stage 2 is on the same rank and takes the tensor directly
//
// A result needed on another rank is transferred by one SEND there and one RECV here (transfer_of,
// partner_of). UNSHARD, RESHARD, REDUCE_GRAD and WAITs have no data dependencies; their order is
// their position in the rank's list. Pure functions, safe to use from any thread. Stages must be in
// the placement.

namespace pipewright::ir {

// A result of a compute action for one stage and microbatch.
enum class Result : uint8_t {
  kOutput,         // the stage's output, and the tensors saved for backward
  kInputGradient,  // the gradient of the stage's input
  kWeightInput,    // the tensors that I saves for W
};

// A result that an action needs.
struct Need {
  Result result;
  int stage;
  int microbatch;
  int rank;  // the rank that produces it

  friend bool operator==(const Need&, const Need&) = default;
};

// The needs of one action: at most two, in the order of the table above. A fixed-size list, so that
// queries do not allocate.
class Needs {
 public:
  const Need* begin() const { return needs_.data(); }
  const Need* end() const { return needs_.data() + size_; }
  int size() const { return size_; }
  const Need& operator[](int index) const { return needs_[static_cast<size_t>(index)]; }

  void add(const Need& need) { needs_[static_cast<size_t>(size_++)] = need; }

 private:
  std::array<Need, 2> needs_{};
  int size_ = 0;
};

// The results that `part` needs. Throws InternalError for a compound; query its parts instead.
Needs needs_of(ActionPart part, const Placement& placement);

// Whether an action of this kind produces this result for its stage and microbatch.
bool makes(ActionKind kind, Result result);

// The transfer of a result from one rank to another: a SEND and its RECV.
struct Transfer {
  ActionPart send;     // runs on rank `from`
  ActionPart receive;  // runs on rank `to`
  int from;
  int to;

  friend bool operator==(const Transfer&, const Transfer&) = default;
};

// The transfer of the result of F, B or I to the neighbouring stage. nullopt for other kinds, at
// the end of the pipeline (F of the last stage, B or I of stage 0), and if both stages are on one
// rank.
std::optional<Transfer> transfer_of(ActionPart compute, const Placement& placement);

// The transfer that a SEND or RECV is part of. nullopt if there is no such neighbouring stage (for
// example SEND_F of the last stage). Throws InternalError for other kinds.
std::optional<Transfer> partner_of(ActionPart send_or_receive, const Placement& placement);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_DEPENDENCIES_H_
