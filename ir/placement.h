#ifndef PIPEWRIGHT_IR_PLACEMENT_H_
#define PIPEWRIGHT_IR_PLACEMENT_H_

#include <string>
#include <string_view>
#include <vector>

// Which rank holds which stage.
//
//   loop, 2 ranks, 4 stages:  0 1 0 1      rank(s) = s mod P
//   v,    2 ranks, 4 stages:  0 1 1 0      forth and back: the last stage lies beside the first
//   any other map:            0 1 0 0 1
//
// Both patterns are those of torch.distributed.pipelining's generate_stage_to_rank_mapping. A
// value: copy it freely, any thread. Replicas (two copies of a stage on two ranks, as DualPipe has
// them) will each add a map; there is one.

namespace pipewright::ir {

class Placement {
 public:
  Placement() = default;  // no ranks, no stages

  // `num_stages` need not be a multiple of `num_ranks`; both at least 1.
  static Placement loop(int num_ranks, int num_stages);
  // `num_stages` must be a multiple of `num_ranks`.
  static Placement v(int num_ranks, int num_stages);
  // `rank_of_stage[s]` is the rank of stage s, below `num_ranks`.
  static Placement custom(int num_ranks, std::vector<int> rank_of_stage);

  int num_ranks() const { return num_ranks_; }
  int num_stages() const { return static_cast<int>(rank_of_stage_.size()); }

  // The rank that holds `stage`, which must be in range.
  int rank_of(int stage) const { return rank_of_stage_[static_cast<size_t>(stage)]; }
  // The stages of `rank`, ascending. Linear in the number of stages.
  std::vector<int> stages_of(int rank) const;

  // "loop", "v", or the ranks of the stages in order: "0 1 1 0 0 1". A map that is a loop is called
  // so, then a v.
  std::string to_string() const;

  friend bool operator==(const Placement&, const Placement&) = default;

 private:
  Placement(int num_ranks, std::vector<int> rank_of_stage);

  int num_ranks_ = 0;
  std::vector<int> rank_of_stage_;
};

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_PLACEMENT_H_
