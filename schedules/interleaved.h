#ifndef PIPEWRIGHT_SCHEDULES_INTERLEAVED_H_
#define PIPEWRIGHT_SCHEDULES_INTERLEAVED_H_

#include "pipewright/schedules/schedule_spec.h"

namespace pipewright::schedules {

// What the interleaved schedules share: the order in which a rank takes its stages. Microbatches
// run in rounds of `microbatches_a_round`; within a round all of them go through the rank's first
// stage, then the second, and so on.
//
//   2 ranks, 4 stages, 4 microbatches, rank 0:  forward 0F0 0F1 2F0 2F1 0F2 0F3 2F2 2F3
//                                              backward 2B0 2B1 0B0 0B1 2B2 2B3 0B2 0B3
class InterleavedOrder {
 public:
  InterleavedOrder(const Shape& shape, int rank);

  // Forwards that a rank runs before its first backward, where it stays `slope` operations ahead of
  // the next rank: min((V-1) R + slope (P-1-r), V M) with R microbatches a round.
  int warmup(int slope) const;
  // Of all forwards, and of all backwards: V M.
  int num_operations() const { return num_operations_; }

  // The stage and the microbatch of the forward or backward number `operation`, from 0.
  ir::ActionPart forward(int operation) const;
  ir::ActionPart backward(int operation, ir::ActionKind kind) const;

 private:
  struct Place {
    int local_stage;
    int microbatch;
  };
  Place place(int operation) const;

  int ranks_, rank_, stages_per_rank_, group_size_, microbatches_a_round_, num_microbatches_;
  int num_operations_;
};

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_INTERLEAVED_H_
