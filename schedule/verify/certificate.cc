#include "pipewright/schedule/verify/certificate.h"

#include <algorithm>

#include "pipewright/ir/dependencies.h"

namespace pipewright::schedule {
namespace {

using ir::ActionKind;
using ir::ActionPart;

// Something that comes and goes along a row.
class Counter {
 public:
  void add(int step) {
    if (++live_ > peak_.count) peak_ = {live_, step};
  }
  void remove() { --live_; }
  Peak peak() const { return peak_; }

 private:
  int live_ = 0;
  Peak peak_;
};

// How many of a compute's inputs come from another rank.
int inputs_received(ActionPart part, int rank, const ir::Placement& placement) {
  const ir::Needs needs = ir::needs_of(part, placement);
  return static_cast<int>(std::count_if(needs.begin(), needs.end(),
                                        [&](const ir::Need& need) { return need.rank != rank; }));
}

}  // namespace

std::vector<RankCertificate> certify(const ir::Program& program) {
  const bool trains = ir::has_backward(program);
  std::vector<RankCertificate> certificates;
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    Counter activations, buffers, stages;
    const ir::Row& row = program.rows[rank];
    for (size_t index = 0; index < row.size(); ++index) {
      const int step = static_cast<int>(index);
      int used_buffers = 0;
      const auto count = [&](ActionPart part) {
        if (part.kind() == ActionKind::kForward) activations.add(step);
        if (ir::completes_backward(part.kind()) || (!trains && part.kind() == ActionKind::kForward))
          activations.remove();
        if (ir::is_receive(part.kind())) buffers.add(step);
        if (ir::is_compute(part.kind()))
          used_buffers += inputs_received(part, static_cast<int>(rank), program.placement);
        if (part.kind() == ActionKind::kUnshard) stages.add(step);
        if (part.kind() == ActionKind::kReshard) stages.remove();
      };
      const auto parts = row[index].parts();
      for (const ActionPart part : parts) {
        if (part.kind() == ActionKind::kForward) count(part);
      }
      for (const ActionPart part : parts) {
        if (part.kind() != ActionKind::kForward) count(part);
      }
      for (; used_buffers > 0; --used_buffers) buffers.remove();  // at the end of the whole action
    }
    certificates.push_back({activations.peak(), buffers.peak(), stages.peak()});
  }
  return certificates;
}

}  // namespace pipewright::schedule
