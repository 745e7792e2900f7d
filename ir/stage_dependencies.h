#ifndef PIPEWRIGHT_IR_STAGE_DEPENDENCIES_H_
#define PIPEWRIGHT_IR_STAGE_DEPENDENCIES_H_

#include <optional>
#include <vector>

#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/placement.h"

namespace pipewright::ir {

// What the oracle (ir/dependencies.h) says of every stage, asked beforehand: it says the same for
// each microbatch, and programs have many. Not changed once built.
class StageDependencies {
 public:
  explicit StageDependencies(const Placement& placement);

  // What oracle and part have in common: all but the microbatch, which is the part's own.
  struct Need {
    Result result;
    bool of_other_rank;
    int stage;

    // The RECV by which a compute gets it, where it is of another rank.
    ActionPart receive_for(ActionPart compute) const {
      const bool forward = result == Result::kOutput;
      return {forward ? ActionKind::kRecvF : ActionKind::kRecvB, compute.stage(),
              compute.microbatch()};
    }
  };
  struct Answer {
    Need needs[2];
    int num_needs = 0;
    // Of F, B and I: what must be sent. Of a SEND or RECV: what it is an end of. Microbatch 0.
    std::optional<Transfer> transfer;

    const Need* begin() const { return needs; }
    const Need* end() const { return needs + num_needs; }
  };
  // Of a part that is not a compound.
  const Answer& of(ActionPart part) const {
    return answers_[static_cast<size_t>(part.stage()) * kKinds + static_cast<size_t>(part.kind())];
  }

 private:
  static constexpr size_t kKinds = std::size(kActionKinds) + 1;  // and kIdle

  std::vector<Answer> answers_;  // by stage and kind
};

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_STAGE_DEPENDENCIES_H_
