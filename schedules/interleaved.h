#ifndef PIPEWRIGHT_SCHEDULES_INTERLEAVED_H_
#define PIPEWRIGHT_SCHEDULES_INTERLEAVED_H_

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
// This class says which operation comes k-th in either order; the schedules decide how forwards and
// backwards alternate. Every query takes constant time. P ranks, V stages per rank, M microbatches.
class InterleavedOrder {
 public:
  InterleavedOrder(const Shape& shape, int rank);

  // The number of forwards in the warm-up of a schedule in which each rank stays `slope` forwards
  // ahead of the next: min((V-1) R + slope (P-1-r), V M), with R microbatches per round.
  int warmup(int slope) const;
  // The number of forwards, which is also the number of backwards: V M.
  int num_operations() const { return num_operations_; }

  // The k-th forward and the k-th backward of the rank, k from 0.
  ir::ActionPart forward(int k) const;
  ir::ActionPart backward(int k, ir::ActionKind kind) const;

 private:
  struct Operation {
    int local_stage;  // index among the rank's stages, in the direction of the pass
    int microbatch;
  };
  Operation operation(int k) const;

  int ranks_, rank_, stages_per_rank_, group_size_, round_size_, num_microbatches_;
  int num_operations_;
};

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_INTERLEAVED_H_
