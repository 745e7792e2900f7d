#include "schedule/stage_dependencies.h"

namespace pipewright::schedule {

StageDependencies::StageDependencies(const ir::Placement& placement)
    : answers_(static_cast<size_t>(placement.num_stages()) * kKinds) {
  for (int stage = 0; stage < placement.num_stages(); ++stage) {
    for (const ir::ActionKindInfo& row : ir::action_kinds()) {
      if (row.kind == ir::ActionKind::kOverlapFB) continue;
      const ir::ActionPart part(row.kind, stage);
      Answer& answer =
          answers_[static_cast<size_t>(stage) * kKinds + static_cast<size_t>(row.kind)];
      for (const ir::Need& need : ir::needs_of(part, placement)) {
        answer.needs[answer.num_needs++] = {need.result, need.rank != placement.rank_of(stage),
                                            need.stage};
      }
      answer.transfer = ir::is_transfer(row.kind) ? ir::partner_of(part, placement)
                                                  : ir::transfer_of(part, placement);
    }
  }
}

}  // namespace pipewright::schedule
