#ifndef PIPEWRIGHT_IR_STAGE_DEPENDENCIES_H_
#define PIPEWRIGHT_IR_STAGE_DEPENDENCIES_H_

#include <optional>
#include <vector>

#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/placement.h"

namespace pipewright::ir {

// The functions of pipewright/ir/dependencies.h as a table, one row per stage and kind of action.
// The dependencies of an action are the same for every microbatch, so passes over large programs
// look them up here instead of computing them per action. Immutable after construction; safe to use
// from any thread. Size: linear in the number of stages.
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
    // For F, B and I: transfer_of; for SEND and RECV: partner_of. Its microbatch is 0.
    std::optional<Transfer> transfer;

    const Need* begin() const { return needs; }
    const Need* end() const { return needs + num_needs; }
  };
  // The answer for `part`, whose stage must be in the placement.
  const Answer& of(ActionPart part) const {
    return answers_[static_cast<size_t>(part.stage()) * kKinds + static_cast<size_t>(part.kind())];
  }

 private:
  static constexpr size_t kKinds = std::size(kActionKinds) + 1;  // plus kIdle

  std::vector<Answer> answers_;  // by stage and kind
};

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_STAGE_DEPENDENCIES_H_
