// SENDs and RECVs are matched by the input that they are for. Then the computes of each rank are
// visited in order: one that looks for a tensor has waited for it since the compute before it, and
// since its RECV took part.
#include "pipewright/schedule/simulate/recorded_transfers.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace pipewright::schedule {
namespace {

constexpr double kEver = std::numeric_limits<double>::lowest();

bool is_of_gradient(ir::ActionKind kind) {
  return kind == ir::ActionKind::kRecvB || ir::gives_input_gradient(kind);
}

}  // namespace

int receiving_stage(ir::ActionPart send) {
  return send.stage() + (send.kind() == ir::ActionKind::kSendF ? 1 : -1);
}

RecordedTransfers::RecordedTransfers(const ir::Schedule& schedule, const ir::Timeline& timeline)
    : schedule_(schedule),
      of_input_(2 * static_cast<size_t>(schedule.placement.num_stages()) *
                static_cast<size_t>(schedule.num_microbatches)) {
  using ir::ActionKind;
  std::vector<std::optional<size_t>> send_of(of_input_.size());  // cells
  std::vector<double> received_from(of_input_.size(), kEver);
  for (size_t cell = 0; cell < timeline.size(); ++cell) {
    const auto [rank, step] = timeline.cell_of(cell);
    const ir::Action& action = schedule.rows[rank][step];
    if (!ir::is_transfer(action.kind())) continue;
    const ir::ActionPart part = action.parts()[0];
    if (ir::is_receive(part.kind())) {
      received_from[index(part)] = timeline[cell].start;
    } else {
      const ActionKind receive =
          part.kind() == ActionKind::kSendF ? ActionKind::kRecvF : ActionKind::kRecvB;
      send_of[index({receive, receiving_stage(part), part.microbatch()})] = cell;
    }
  }
  std::map<std::pair<int, int>, double> arrived;  // by link: the last arrival that is known
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    double previous = kEver;  // the end of the compute before
    for (size_t step = 0; step < schedule.rows[rank].size(); ++step) {
      const ir::Action& action = schedule.rows[rank][step];
      if (!ir::is_compute(action.kind())) continue;
      for (const ir::ActionPart part : action.parts()) {
        if (!comes_from_another_rank(part) || !send_of[index(part)]) continue;
        const size_t cell = *send_of[index(part)];
        const ir::Interval& send = timeline[cell];
        RecordedTransfer transfer{
            .from = static_cast<int>(timeline.cell_of(cell).rank),
            .to = static_cast<int>(rank),
            .send = cell,
            .start = send.start,
            .end = send.end,
            .waited_from = std::max({previous, received_from[index(part)], send.start})};
        double& last = arrived.try_emplace({transfer.from, transfer.to}, kEver).first->second;
        if (last <= transfer.end) transfer.start = std::max(transfer.start, last);
        if (transfer.is_known()) last = transfer.end;
        of_input_[index(part)] = all_.size();
        all_.push_back(transfer);
      }
      previous = timeline.at(rank, step).end;
    }
  }
}

bool RecordedTransfers::comes_from_another_rank(ir::ActionPart compute) const {
  const bool is_gradient = is_of_gradient(compute.kind());
  if (!is_gradient && compute.kind() != ir::ActionKind::kForward) return false;
  const int from = compute.stage() + (is_gradient ? 1 : -1);
  const ir::Placement& placement = schedule_.placement;
  return from >= 0 && from < placement.num_stages() &&
         placement.rank_of(from) != placement.rank_of(compute.stage());
}

size_t RecordedTransfers::index(ir::ActionPart part) const {
  return (2 * static_cast<size_t>(part.stage()) + (is_of_gradient(part.kind()) ? 1 : 0)) *
             static_cast<size_t>(schedule_.num_microbatches) +
         static_cast<size_t>(part.microbatch());
}

}  // namespace pipewright::schedule
