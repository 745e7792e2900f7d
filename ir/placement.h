#ifndef PIPEWRIGHT_IR_PLACEMENT_H_
#define PIPEWRIGHT_IR_PLACEMENT_H_

#include <string>
#include <string_view>
#include <vector>

// A placement maps each pipeline stage to the rank that holds it.
//
//                             ranks of stages 0, 1, 2, ...
//   loop, 2 ranks, 4 stages   0 1 0 1         rank(s) = s mod P
//   v,    2 ranks, 4 stages   0 1 1 0         back and forth, so rank 0 holds the first and the
//                                             last stage
//   custom                    0 1 0 0 1       any map
//
// loop and v are the patterns of torch.distributed.pipelining's generate_stage_to_rank_mapping. A
// plain value. It describes one replica of the model; schedules that place two replicas of each
// stage (DualPipe) would add a map per replica.

namespace pipewright::ir {

class Placement {
 public:
  Placement() = default;  // no ranks, no stages

  // The factories throw InternalError unless num_ranks >= 1, 1 <= num_stages <= kMaxStages, and the
  // condition on each holds.

  // `num_stages` need not be a multiple of `num_ranks`.
  static Placement loop(int num_ranks, int num_stages);
  // `num_stages` must be a multiple of `num_ranks`.
  static Placement v(int num_ranks, int num_stages);
  // `rank_of_stage[s]` is the rank of stage s, in [0, num_ranks).
  static Placement custom(int num_ranks, std::vector<int> rank_of_stage);

  int num_ranks() const { return num_ranks_; }
  int num_stages() const { return static_cast<int>(rank_of_stage_.size()); }

  // The rank that holds `stage`, which must be in [0, num_stages()).
  int rank_of(int stage) const { return rank_of_stage_[static_cast<size_t>(stage)]; }
  // The stages on `rank`, in ascending order. Linear in the number of stages.
  std::vector<int> stages_of(int rank) const;

  // "loop", "v", or the ranks of stages 0, 1, 2, ...: "0 1 1 0 0 1". A custom map that equals a
  // pattern prints as the pattern; "loop" wins where both are the same map.
  std::string to_string() const;

  friend bool operator==(const Placement&, const Placement&) = default;

 private:
  Placement(int num_ranks, std::vector<int> rank_of_stage);

  int num_ranks_ = 0;
  std::vector<int> rank_of_stage_;
};

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_PLACEMENT_H_
