#include "pipewright/schedules/interleaved.h"

#include <algorithm>
#include <cstdint>

#include "pipewright/schedules/constraints.h"

namespace pipewright::schedules {

InterleavedOrder::InterleavedOrder(const Shape& shape, int rank)
    : ranks_(shape.ranks),
      rank_(rank),
      stages_per_rank_(shape.stages_per_rank()),
      group_size_(shape.group_size > 0 ? shape.group_size : microbatches_per_round(shape)),
      round_size_(std::min(group_size_, shape.microbatches)),
      num_microbatches_(shape.microbatches),
      num_operations_(shape.stages_per_rank() * shape.microbatches) {}

int InterleavedOrder::warmup(int slope) const {
  const int64_t operations =
      int64_t{stages_per_rank_ - 1} * group_size_ + int64_t{slope} * (ranks_ - 1 - rank_);
  return static_cast<int>(std::min<int64_t>(operations, num_operations_));
}

ir::ActionPart InterleavedOrder::forward(int k) const {
  const auto [local_stage, microbatch] = operation(k);
  return {ir::ActionKind::kForward, local_stage * ranks_ + rank_, microbatch};
}

ir::ActionPart InterleavedOrder::backward(int k, ir::ActionKind kind) const {
  const auto [local_stage, microbatch] = operation(k);
  return {kind, (stages_per_rank_ - 1 - local_stage) * ranks_ + rank_, microbatch};
}

InterleavedOrder::Operation InterleavedOrder::operation(int k) const {
  // A round has V R operations: its R microbatches go through each of the V stages in turn. The
  // last round may have fewer microbatches.
  const int first = k / (round_size_ * stages_per_rank_) * round_size_;  // microbatch of the round
  const int size = std::min(round_size_, num_microbatches_ - first);
  const int in_round = k - first * stages_per_rank_;
  return {in_round / size, first + in_round % size};
}

}  // namespace pipewright::schedules
