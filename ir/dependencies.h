#ifndef PIPEWRIGHT_IR_DEPENDENCIES_H_
#define PIPEWRIGHT_IR_DEPENDENCIES_H_

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "pipewright/ir/action.h"
#include "pipewright/ir/check.h"
#include "pipewright/ir/placement.h"
#include "pipewright/ir/tables.h"

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
// With slices (Schedule::slices), later slices of a microbatch attend to the keys and values of
// earlier ones, and their backwards return gradients for these. So two more rules hold for the
// slices of one microbatch on one stage (Seq1F1B, arXiv 2406.03488, section 3.1):
//
//   F of slice k        comes after F of slice k-1
//   B or I of slice k   comes after B or I of slice k+1
//
// For example, one rank with `slices: 2`, whose microbatch 0 is slices 0 and 1, and microbatch 1
// slices 2 and 3:
//
//   0F0 0F1 0B1 0F2 0B0 0F3 0B3 0B2    valid
//   0F0 0F1 0B0 0B1 ...                not valid: 0B0 needs the gradients that 0B1 returns
//
// With two replicas of the model (placement.h) each microbatch runs on the stages of its own, so
// these rules hold as they are, and ranks are those of that replica. Only the gradients of a stage
// are those of both: who runs the program adds them up once per step.
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

// The action of this kind and instance of a stage, for the first microbatch of the instance: it
// stands for all of them.
inline ActionPart part_of(ActionKind kind, int instance, const Placement& placement) {
  return {kind, placement.stage_of_instance(instance), placement.microbatch_of_instance(instance)};
}

// The results that `part` needs. Throws InternalError for a compound; query its parts instead.
Needs needs_of(ActionPart part, const Placement& placement);

// Of the same kind as `part`, or a B where that is an I: the microbatch (a slice) whose action must
// come before `part` on its stage, if microbatches are cut into so many slices. nullopt if there is
// none.
inline std::optional<int> slice_before(ActionPart part, int slices) {
  const int slice = part.microbatch() % slices;
  if (part.kind() == ActionKind::kForward && slice > 0) return part.microbatch() - 1;
  if (gives_input_gradient(part.kind()) && slice + 1 < slices) return part.microbatch() + 1;
  return std::nullopt;
}

// The slice whose backward comes in the place of slice `index`, which counts those of all
// microbatches, if backwards run microbatch by microbatch: from the last slice of each to its
// first.
constexpr int backward_at(int index, int slices) {
  return index + slices - 1 - 2 * (index % slices);
}

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

// Numbers the ordered pairs of ranks that exchange tensors, so that data about a pair can be kept
// in a vector instead of a map. With stages 0 1 2 3 on ranks 0 1 1 0 there are two pairs: (0, 1) is
// 0 and (1, 0) is 1. Immutable after construction; safe to use from any thread.
class RankPairs {
 public:
  explicit RankPairs(const Placement& placement);

  uint32_t size() const { return static_cast<uint32_t>(pairs_.size()); }
  // The sending and the receiving rank of pair `id`.
  std::pair<int, int> ranks(uint32_t id) const { return pairs_[id]; }
  // The pair that a SEND or RECV belongs to; its two stages must be on different ranks. Throws
  // InternalError for other kinds.
  uint32_t of(ActionPart send_or_receive) const {
    const auto instance =
        static_cast<size_t>(instances_.of(send_or_receive.stage(), send_or_receive.microbatch()));
    switch (send_or_receive.kind()) {
      case ActionKind::kSendF:
        return forward_[instance];
      case ActionKind::kRecvF:
        return forward_[instance - 1];
      case ActionKind::kSendB:
        return backward_[instance];
      case ActionKind::kRecvB:
        return backward_[instance + 1];
      case ActionKind::kIdle:
      case ActionKind::kForward:
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
      case ActionKind::kBackwardWeight:
      case ActionKind::kOverlapFB:
      case ActionKind::kUnshard:
      case ActionKind::kReshard:
      case ActionKind::kReduceGrad:
      case ActionKind::kWaitSendF:
      case ActionKind::kWaitSendB:
      case ActionKind::kWaitReduceGrad:
        break;
    }
    PW_CHECK(false, "expected a SEND or RECV");
    return 0;
  }

 private:
  InstanceNumbers instances_;
  std::vector<std::pair<int, int>> pairs_;
  std::vector<uint32_t> forward_, backward_;  // by the instance that sends
};

// The functions of pipewright/ir/dependencies.h as a table, one row per instance of a stage and
// kind of action. The dependencies of an action are the same for every microbatch of it, so passes
// over large programs look them up here instead of computing them per action. Immutable after
// construction; safe to use from any thread. Size: linear in the number of stages.
class StageDependencies {
 public:
  explicit StageDependencies(const Placement& placement);

  // An ir::Need without its microbatch, which is that of the action.
  struct Need {
    Result result;
    bool of_other_rank;  // produced on another rank, so received by a RECV
    int stage;

    // The RECV that brings the result to `compute`, if it comes from another rank.
    ActionPart receive_for(ActionPart compute) const {
      const bool forward = result == Result::kOutput;
      return {forward ? ActionKind::kRecvF : ActionKind::kRecvB, compute.stage(),
              compute.microbatch()};
    }
  };
  struct Answer {
    Need needs[2];
    int num_needs = 0;
    // For F, B and I: transfer_of; for SEND and RECV: partner_of. Its microbatch is the first one
    // of the instance.
    std::optional<Transfer> transfer;

    const Need* begin() const { return needs; }
    const Need* end() const { return needs + num_needs; }
  };
  // The answer for `part`, whose stage must be in the placement.
  const Answer& of(ActionPart part) const { return answers_[part]; }

 private:
  StageKindTable<Answer> answers_;
};

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_DEPENDENCIES_H_
