#include "pipewright/ir/stage_dependencies.h"

namespace pipewright::ir {

StageDependencies::StageDependencies(const Placement& placement)
    : answers_(static_cast<size_t>(placement.num_stages()) * kKinds) {
  for (int stage = 0; stage < placement.num_stages(); ++stage) {
    for (const ActionKindInfo& row : action_kinds()) {
      if (row.kind == ActionKind::kOverlapFB) continue;
      const ActionPart part(row.kind, stage);
      Answer& answer =
          answers_[static_cast<size_t>(stage) * kKinds + static_cast<size_t>(row.kind)];
      for (const ir::Need& need : needs_of(part, placement)) {
        answer.needs[answer.num_needs++] = {need.result, need.rank != placement.rank_of(stage),
                                            need.stage};
      }
      answer.transfer =
          is_transfer(row.kind) ? partner_of(part, placement) : transfer_of(part, placement);
    }
  }
}

}  // namespace pipewright::ir
