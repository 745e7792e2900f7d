#include "schedules/interleaved.h"

#include <algorithm>

#include "schedules/constraints.h"

namespace pipewright::schedules {

InterleavedOrder::InterleavedOrder(const Shape& shape, int rank)
    : ranks_(shape.ranks),
      rank_(rank),
      stages_per_rank_(shape.stages_per_rank()),
      microbatches_a_round_(microbatches_a_round(shape)),
      num_operations_(shape.stages_per_rank() * shape.microbatches) {}

int InterleavedOrder::warmup(int slope) const {
  return std::min((stages_per_rank_ - 1) * microbatches_a_round_ + slope * (ranks_ - 1 - rank_),
                  num_operations_);
}

ir::ActionPart InterleavedOrder::forward(int operation) const {
  return part(operation, operation / microbatches_a_round_ % stages_per_rank_,
              ir::ActionKind::kForward);
}

ir::ActionPart InterleavedOrder::backward(int operation, ir::ActionKind kind) const {
  return part(operation,
              stages_per_rank_ - 1 - operation / microbatches_a_round_ % stages_per_rank_, kind);
}

ir::ActionPart InterleavedOrder::part(int operation, int local_stage, ir::ActionKind kind) const {
  // A round is V times R operations, and takes R microbatches through each stage.
  const int round = operation / (microbatches_a_round_ * stages_per_rank_);
  const int microbatch = round * microbatches_a_round_ + operation % microbatches_a_round_;
  return {kind, local_stage * ranks_ + rank_, microbatch};
}

}  // namespace pipewright::schedules
