#ifndef PIPEWRIGHT_SCHEDULE_STAGE_DEPENDENCIES_H_
#define PIPEWRIGHT_SCHEDULE_STAGE_DEPENDENCIES_H_

#include <optional>
#include <vector>

#include "ir/dependencies.h"
#include "ir/placement.h"

namespace pipewright::schedule {

// What the oracle (ir/dependencies.h) says of every stage, asked beforehand: it says the same for
// each microbatch, and programs have many. Not changed once built.
class StageDependencies {
 public:
  explicit StageDependencies(const ir::Placement& placement);

  // What oracle and part have in common: all but the microbatch, which is the part's own.
  struct Need {
    ir::Result result;
    bool of_other_rank;
    int stage;

    // The RECV by which a compute gets it, where it is of another rank.
    ir::ActionPart receive_for(ir::ActionPart compute) const {
      const bool forward = result == ir::Result::kOutput;
      return {forward ? ir::ActionKind::kRecvF : ir::ActionKind::kRecvB, compute.stage(),
              compute.microbatch()};
    }
  };
  struct Answer {
    Need needs[2];
    int num_needs = 0;
    // Of F, B and I: what must be sent. Of a SEND or RECV: what it is an end of. Microbatch 0.
    std::optional<ir::Transfer> transfer;

    const Need* begin() const { return needs; }
    const Need* end() const { return needs + num_needs; }
  };
  // Of a part that is not a compound.
  const Answer& of(ir::ActionPart part) const {
    return answers_[static_cast<size_t>(part.stage()) * kKinds + static_cast<size_t>(part.kind())];
  }

 private:
  static constexpr size_t kKinds = std::size(ir::kActionKinds) + 1;  // and kIdle

  std::vector<Answer> answers_;  // by stage and kind
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_STAGE_DEPENDENCIES_H_
