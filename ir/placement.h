#ifndef PIPEWRIGHT_IR_PLACEMENT_H_
#define PIPEWRIGHT_IR_PLACEMENT_H_

#include <climits>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/ir/check.h"

// A placement maps each pipeline stage to the rank that holds it.
//
//                             ranks of stages 0, 1, 2, ...
//   loop, 2 ranks, 4 stages   0 1 0 1         rank(s) = s mod P
//   v,    2 ranks, 4 stages   0 1 1 0         back and forth, so rank 0 holds the first and the
//                                             last stage
//   custom                    0 1 0 0 1       any map
//
// loop and v are the patterns of torch.distributed.pipelining's generate_stage_to_rank_mapping.
//
// Bidirectional pipelines (Chimera, arXiv 2107.06925; DualPipe, arXiv 2412.19437) hold two replicas
// of the model, each with a map of its own, and each runs a part of the microbatches: replica 1
// those from `second_from` on. Each replica of a stage is one *instance*, with a copy of its
// parameters. With 4 ranks and 8 microbatches:
//
//                                  rank 0     rank 1     rank 2     rank 3
//   replica 0, microbatches 0-3    stage 0    stage 1    stage 2    stage 3
//   replica 1, microbatches 4-7    stage 3    stage 2    stage 1    stage 0
//
// No rank holds one stage twice, so a rank and a stage name an instance. A plain value.

namespace pipewright::ir {

// Which instance of a stage runs a microbatch: instances are numbered by replica, then stage.
struct InstanceNumbers {
  static constexpr int kNoSecond = INT_MAX;

  int num_stages = 0;           // of the model
  int second_from = kNoSecond;  // the first microbatch of replica 1

  // Walks along rows ask for each action: a branch that is predicted, and nothing to compute.
  int of(int stage, int microbatch) const {
    if (microbatch >= second_from) [[unlikely]]
      return num_stages + stage;
    return stage;
  }

  friend bool operator==(const InstanceNumbers&, const InstanceNumbers&) = default;
};

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
  // Two replicas: microbatches before `second_from`, which is at least 1, run as in `first`, the
  // others as in `second`. Both must have one replica, the same numbers of ranks and stages, and no
  // stage on the same rank.
  static Placement replicas(const Placement& first, const Placement& second, int second_from);
  // Two replicas in opposite directions: in the second one, rank r has the stages that rank P-1-r
  // has in `first`. The number of ranks must be even.
  static Placement both_ways(const Placement& first, int second_from);

  int num_ranks() const { return num_ranks_; }
  // Of the model, whatever the number of replicas.
  int num_stages() const { return numbers_.num_stages; }
  // 1 or 2.
  int num_replicas() const { return numbers_.second_from == InstanceNumbers::kNoSecond ? 1 : 2; }

  // The rank that holds `stage`, which must be in [0, num_stages()). Throws InternalError if there
  // are two replicas.
  int rank_of(int stage) const {
    PW_CHECK(num_replicas() == 1, "the rank of a stage depends on the microbatch");
    return rank_of_stage_[static_cast<size_t>(stage)];
  }
  // The rank that runs `stage` for a microbatch.
  int rank_of(int stage, int microbatch) const {
    return rank_of_instance(numbers_.of(stage, microbatch));
  }
  // The ranks that hold `stage`: one per replica.
  std::vector<int> ranks_of(int stage) const;
  // The stages on `rank`: those of replica 0, then those of replica 1, each in ascending order.
  // Linear in the number of stages.
  std::vector<int> stages_of(int rank) const;

  const InstanceNumbers& instances() const { return numbers_; }
  int num_instances() const { return static_cast<int>(rank_of_stage_.size()); }
  // The instance of a stage that `rank` holds, if it holds one.
  int instance_on(int rank, int stage) const {
    return num_replicas() == 1 || rank_of_instance(stage) == rank ? stage : num_stages() + stage;
  }
  // The instances on a rank, ascending.
  std::vector<int> instances_of(int rank) const;
  int rank_of_instance(int instance) const { return rank_of_stage_[static_cast<size_t>(instance)]; }
  int stage_of_instance(int instance) const { return instance % num_stages(); }
  // The first microbatch that an instance runs.
  int microbatch_of_instance(int instance) const {
    return instance < num_stages() ? 0 : numbers_.second_from;
  }
  // How many of so many microbatches an instance runs.
  int microbatches_of_instance(int instance, int num_microbatches) const;

  // The map of one replica, as a placement of its own.
  Placement replica(int index) const;

  // "loop", "v", or the ranks of stages 0, 1, 2, ...: "0 1 1 0 0 1". A custom map that equals a
  // pattern prints as the pattern; "loop" wins where both are the same map. Of replica 0, if there
  // are two.
  std::string to_string() const;

  friend bool operator==(const Placement&, const Placement&) = default;

 private:
  Placement(int num_ranks, std::vector<int> rank_of_stage);

  int num_ranks_ = 0;
  InstanceNumbers numbers_;
  std::vector<int> rank_of_stage_;  // by instance
};

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_PLACEMENT_H_
