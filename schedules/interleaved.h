#ifndef PIPEWRIGHT_SCHEDULES_INTERLEAVED_H_
#define PIPEWRIGHT_SCHEDULES_INTERLEAVED_H_

#include "pipewright/ir/dependencies.h"
#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// The order of the forwards and of the backwards of one rank in an interleaved schedule (Narayanan
// et al., arXiv 2104.04473; PyTorch's ScheduleInterleaved1F1B and ScheduleInterleavedZeroBubble,
// Megatron-LM's get_schedule_table). The microbatches run in rounds. Within a round, all
// microbatches of the round go through the rank's first stage, then through its second, and so on;
// backwards take the stages in reverse. 2 ranks, 4 stages, 4 microbatches in rounds of 2, rank 0:
//
//   forward    0F0 0F1 2F0 2F1   0F2 0F3 2F2 2F3
//   backward   2B0 2B1 0B0 0B1   2B2 2B3 0B2 0B3
//
// P ranks, V stages per rank, M microbatches, in rounds of R. With slices, the backwards of one
// microbatch are in the opposite order, and rounds must have whole microbatches.
class InterleavedOrder {
 public:
  InterleavedOrder(const Shape& shape, int rank);

  // The number of forwards in the warm-up of a schedule in which each rank stays `slope` forwards
  // ahead of the next: min((V-1) R + slope (P-1-r), V M).
  int warmup(int slope) const;
  // The number of forwards, which is also the number of backwards: V M.
  int num_operations() const { return num_operations_; }

  // Moves along the forwards or along the backwards, from the first one on; the schedules decide
  // how the two alternate.
  class Walk {
   public:
    // The next forward if `kind` is kForward, otherwise the next backward. At most
    // num_operations() calls.
    ir::ActionPart next(ir::ActionKind kind) {
      const bool is_forward = kind == ir::ActionKind::kForward;
      const int local_stage = is_forward ? passed_ : order_.stages_per_rank_ - 1 - passed_;
      const int microbatch =
          is_forward ? microbatch_ : ir::backward_at(microbatch_, order_.slices_);
      const ir::ActionPart part(kind, local_stage * order_.ranks_ + order_.rank_, microbatch);
      ++microbatch_;
      if (microbatch_ == round_end_) next_stage();
      return part;
    }

   private:
    friend class InterleavedOrder;
    explicit Walk(const InterleavedOrder& order);
    void next_stage();
    void begin_round(int microbatch);

    const InterleavedOrder& order_;
    int passed_ = 0;      // stages of the rank that all microbatches of the round have passed
    int microbatch_ = 0;  // of the next operation
    int round_begin_ = 0, round_end_ = 0;  // microbatches
  };
  // Must not outlive this.
  Walk walk() const { return Walk(*this); }

 private:
  int ranks_, rank_, stages_per_rank_, group_size_, round_size_, num_microbatches_, slices_;
  int num_operations_;
};

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_INTERLEAVED_H_
