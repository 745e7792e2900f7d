#include "pipewright/schedules/interleaved.h"

#include <algorithm>
#include <cstdint>

#include "pipewright/schedules/constraints.h"

namespace pipewright::schedules {

InterleavedOrder::InterleavedOrder(const Shape& shape, int rank)
    : ranks_(shape.ranks),
      rank_(rank),
      stages_per_rank_(shape.stages_per_rank()),
      group_size_(shape.group_size > 0 ? shape.group_size : microbatches_a_round(shape)),
      microbatches_a_round_(std::min(group_size_, shape.microbatches)),
      num_microbatches_(shape.microbatches),
      num_operations_(shape.stages_per_rank() * shape.microbatches) {}

int InterleavedOrder::warmup(int slope) const {
  const int64_t operations =
      int64_t{stages_per_rank_ - 1} * group_size_ + int64_t{slope} * (ranks_ - 1 - rank_);
  return static_cast<int>(std::min<int64_t>(operations, num_operations_));
}

ir::ActionPart InterleavedOrder::forward(int operation) const {
  const auto [local_stage, microbatch] = place(operation);
  return {ir::ActionKind::kForward, local_stage * ranks_ + rank_, microbatch};
}

ir::ActionPart InterleavedOrder::backward(int operation, ir::ActionKind kind) const {
  const auto [local_stage, microbatch] = place(operation);
  return {kind, (stages_per_rank_ - 1 - local_stage) * ranks_ + rank_, microbatch};
}

InterleavedOrder::Place InterleavedOrder::place(int operation) const {
  // A round is V times R operations, and takes R microbatches through each stage; the last round
  // may have fewer.
  const int first = operation / (microbatches_a_round_ * stages_per_rank_) * microbatches_a_round_;
  const int size = std::min(microbatches_a_round_, num_microbatches_ - first);
  const int in_round = operation - first * stages_per_rank_;
  return {in_round / size, first + in_round % size};
}

}  // namespace pipewright::schedules
