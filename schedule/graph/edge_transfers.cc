#include "pipewright/schedule/graph/edge_transfers.h"

#include "pipewright/ir/dependencies.h"

namespace pipewright::schedule {

using ir::ActionKind;
using ir::ActionPart;

bool EdgeTransfers::fit(const ir::Schedule& schedule) {
  size_t actions = 0;
  for (const ir::Row& row : schedule.rows) actions += row.size();
  return actions <= kNumber;
}

EdgeTransfers::EdgeTransfers(const ir::Program& program)
    : num_microbatches_(static_cast<size_t>(program.num_microbatches)),
      ends_(program.placement),
      cells_(2 * static_cast<size_t>(program.placement.num_stages()) * num_microbatches_) {
  const ir::StageDependencies dependencies(program.placement);
  const ir::RankPairs pairs(program.placement);
  pairs_.resize(pairs.size());
  for (int instance = 0; instance < program.placement.num_instances(); ++instance) {
    const auto end_of = [&](ActionPart send_or_receive) {
      const auto& transfer = dependencies.of(send_or_receive).transfer;
      if (!transfer || transfer->from == transfer->to) return End();
      const bool sends = ir::is_send(send_or_receive.kind());
      const bool gradient = transfer->receive.kind() == ActionKind::kRecvB;
      const auto receiver = static_cast<uint32_t>(transfer->receive.stage());
      return End{2 * receiver + (gradient ? 1 : 0), pairs.of(send_or_receive),
                 static_cast<uint32_t>(sends ? transfer->to : transfer->from)};
    };
    for (const ir::ActionKindInfo& row : ir::action_kinds()) {
      if (row.kind == ActionKind::kOverlapFB) continue;
      const ActionPart part = ir::part_of(row.kind, instance, program.placement);
      End& end = ends_.at(row.kind, instance);
      if (ir::is_transfer(row.kind)) {
        end = end_of(part);
      } else if (ir::is_compute(row.kind)) {
        for (const ir::StageDependencies::Need& need : dependencies.of(part)) {
          if (need.of_other_rank) end = end_of(need.receive_for(part));
        }
      }
    }
  }
}

}  // namespace pipewright::schedule
