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
      slices_(shape.slices),
      num_operations_(shape.stages_per_rank() * shape.microbatches) {}

int InterleavedOrder::warmup(int slope) const {
  const int64_t operations =
      int64_t{stages_per_rank_ - 1} * group_size_ + int64_t{slope} * (ranks_ - 1 - rank_);
  return static_cast<int>(std::min<int64_t>(operations, num_operations_));
}

InterleavedOrder::Walk::Walk(const InterleavedOrder& order) : order_(order) { begin_round(0); }

// The last round may have fewer microbatches.
void InterleavedOrder::Walk::begin_round(int microbatch) {
  passed_ = 0;
  microbatch_ = round_begin_ = microbatch;
  round_end_ = std::min(microbatch + order_.round_size_, order_.num_microbatches_);
}

void InterleavedOrder::Walk::next_stage() {
  microbatch_ = round_begin_;
  if (++passed_ == order_.stages_per_rank_) begin_round(round_end_);
}

}  // namespace pipewright::schedules
