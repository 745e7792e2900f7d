#include "pipewright/schedule/verify/certificate.h"

#include <algorithm>
#include <utility>

#include "pipewright/ir/dependencies.h"

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
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    const ir::Row& row = program.rows[rank];
    RankCertificate& certificate = certificates.emplace_back();
    certificate.activations = peak_activations(row, has_backward);
    certificate.receive_slots = std::move(slots[rank]);
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

}  // namespace pipewright::schedule
