#include "pipewright/schedule/verify/certificate.h"

#include <algorithm>
#include <set>
#include <utility>

#include "pipewright/ir/channel.h"
#include "pipewright/ir/dependencies.h"
#include "pipewright/schedule/verify/verify.h"

namespace pipewright::schedule {
namespace {

using ir::ActionKind;
using ir::ActionPart;

// The number of a compute's inputs that come from another rank.
int inputs_received(ActionPart compute, int rank, const ir::Placement& placement) {
  const ir::Needs needs = ir::needs_of(compute, placement);
  return static_cast<int>(std::count_if(needs.begin(), needs.end(),
                                        [&](const ir::Need& need) { return need.rank != rank; }));
}

}  // namespace

std::vector<RankCertificate> certify(const ir::Program& program) {
  const bool has_backward = ir::has_backward(program);
  std::vector<RankCertificate> certificates;
  std::vector<ReceiveSlots> slots = receive_slots(program);
  const std::vector<int> communicators = communicators_per_rank(program);
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    const ir::Row& row = program.rows[rank];
    RankCertificate& certificate = certificates.emplace_back();
    certificate.activations = peak_activations(row, has_backward);
    certificate.receive_slots = std::move(slots[rank]);
    certificate.communicators = communicators[rank];
    int buffers = 0, unsharded = 0;
    for (size_t index = 0; index < row.size(); ++index) {
      const int step = static_cast<int>(index);
      for (const ActionPart part : row[index].parts()) {
        if (ir::is_receive(part.kind())) certificate.receive_buffers.add(++buffers, step);
        if (ir::is_compute(part.kind()))
          buffers -= inputs_received(part, static_cast<int>(rank), program.placement);
        if (part.kind() == ActionKind::kUnshard)
          certificate.unsharded_stages.add(++unsharded, step);
        if (part.kind() == ActionKind::kReshard) --unsharded;
      }
    }
  }
  return certificates;
}

std::vector<int> communicators_per_rank(const ir::Program& program) {
  const ir::ChannelModel model = options_of(program.lowering).channels;
  std::vector<int> counts;
  for (const ir::Row& row : program.rows) {
    std::set<uint32_t> queues;
    for (const ir::Action& action : row) {
      if (!ir::is_transfer(action.kind())) continue;
      const auto transfer = ir::partner_of(action.parts()[0], program.placement);
      if (!transfer) continue;
      const bool is_send = ir::is_send(action.kind());
      const int peer = is_send ? transfer->to : transfer->from;
      queues.insert(ir::queue_index(model, static_cast<uint32_t>(peer), is_send));
    }
    counts.push_back(static_cast<int>(queues.size()));
  }
  // All ranks take part in the one communicator, also those that send nothing.
  if (model == ir::ChannelModel::kRank)
    std::ranges::fill(counts, *std::ranges::max_element(counts));
  return counts;
}

}  // namespace pipewright::schedule
