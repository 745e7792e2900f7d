#ifndef PIPEWRIGHT_SCHEDULE_PROBLEM_COSTS_H_
#define PIPEWRIGHT_SCHEDULE_PROBLEM_COSTS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pipewright/ir/action.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/placement.h"
#include "pipewright/ir/tables.h"

namespace pipewright::schedule {

// One number per stage, or a single number for all stages.
class PerStage {
 public:
  PerStage(double all = 0) : values_{all} {}  // NOLINT: implicit, one number for all stages
  explicit PerStage(std::vector<double> values) : values_(std::move(values)), is_list_(true) {}

  double at(int stage) const { return values_[is_list_ ? static_cast<size_t>(stage) : 0]; }
  // Whether there is one number per stage.
  bool is_list() const { return is_list_; }
  std::span<const double> values() const { return values_; }
  bool is_zero() const;
  void scale(double factor);

  friend bool operator==(const PerStage&, const PerStage&) = default;

 private:
  std::vector<double> values_;
  bool is_list_ = false;
};

// One number per rank, or a single number for all ranks.
using PerRank = PerStage;

// A connection between two ranks. A transfer takes latency + bytes / bandwidth.
struct Link {
  double latency = 0;
  double bandwidth = std::numeric_limits<double>::infinity();  // bytes per unit of time

  friend bool operator==(const Link&, const Link&) = default;
};

// A connection that differs from the one between other ranks. What is unset is as there.
struct OwnLink {
  std::optional<double> latency = {};
  std::optional<double> bandwidth = {};

  friend bool operator==(const OwnLink&, const OwnLink&) = default;
};

struct Costs;
inline constexpr size_t kNumStageCosts = 19;

// Equal layers of a model, one after the other. The costs of each are those of a stage that has it
// alone.
struct LayerRun {
  LayerRun();  // one layer with the default costs of a stage

  // The cost of one layer, which must be one of stage_costs().
  double& operator[](PerStage Costs::*cost);
  double operator[](PerStage Costs::*cost) const;

  int count = 1;
  std::array<double, kNumStageCosts> values;  // in the order of stage_costs()

  friend bool operator==(const LayerRun&, const LayerRun&) = default;
};

// The costs of a schedule's actions: durations per microbatch in any unit of time, sizes in bytes.
// B takes I + W, a compound the sum of its parts less `overlap` times the shorter one. COSTS.md
// describes the file format. A plain value.
struct Costs {
  std::string unit = {};    // of time, for output: "ms"; empty if unknown
  int microbatch_size = 0;  // sequences per microbatch; 0 if unknown

  PerStage forward = 1, backward_input = 1, backward_weight = 1;
  PerStage unshard = 0, reshard = 0, reduce_grad = 0;
  // The part of F that a stage that recomputes runs again before each I or B: 1 for all of it.
  PerStage recompute = 1;
  // The part of its shorter action that a compound hides, from 0 to 1: with 1 it takes as long as
  // the longer one.
  double overlap = 0;
  // Copies of an activation to the host and back, of stages that offload: see memory_model.h.
  PerStage offload = 0, reload = 0;
  // Factors on the durations of a rank's compute and data-parallel actions, by rank; empty for 1.
  std::vector<double> rank_scale = {};
  // Factors on the durations of a microbatch's compute actions, by microbatch; empty for 1.
  std::vector<double> microbatch_scale = {};
  // The same of a slice, by slice of its microbatch: a slice takes slice_scale / K of what the
  // whole microbatch takes, where there are K. Empty for 1; not read for whole microbatches. Later
  // slices attend to more.
  std::vector<double> slice_scale = {};
  // How many slices each microbatch is cut into, of which the costs are then. Not in costs files:
  // sliced() sets it.
  int slices = 1;
  // The memory of each rank, by rank; empty if unknown. See MemoryBudget::bytes.
  std::vector<double> rank_memory_bytes = {};

  Link link = {};  // between any two ranks
  std::map<std::pair<int, int>, OwnLink> links =
      {};  // by (from, to): links that differ from `link`

  // Sizes per microbatch, and of parameters and gradients per stage. 0 if unknown.
  PerStage output_bytes = 0;          // F's output, sent to the next stage
  PerStage input_gradient_bytes = 0;  // the gradient that B or I sends to the previous stage
  PerStage activation_bytes = 0;      // what F saves for the backward
  PerStage checkpoint_bytes = 0;      // what F saves instead on a stage that recomputes
  PerStage offload_bytes = 0;         // the part of that which a stage that offloads copies
  PerStage weight_input_bytes = 0;    // activations and gradients that are saved from I until W
  PerStage parameter_bytes = 0;       // unsharded parameters
  PerStage gradient_bytes = 0;        // gradients before they are reduced
  // What the stage's rank holds throughout: its shards of parameters and reduced gradients, if they
  // are sharded, and the optimizer's state (master weights too), sharded or not.
  PerStage shard_bytes = 0, optimizer_bytes = 0;
  // What I or B allocates and frees again, beside activation_bytes, and the part of it that needs
  // no gradient: the recomputation. Not in costs files: recomputing() sets them.
  PerStage recomputed_bytes = 0, recomputation = 0;

  // The layers of a model, in place of what is per stage, which is then as by default; and how many
  // of them each stage has, empty for the schedule's own cut. See layers.h.
  std::vector<LayerRun> layers = {};
  std::vector<int> cut = {};

  // Whether any of the sizes is known.
  bool has_sizes() const;
  // What a stage frees by its copies to the host: at most what F saves.
  double offloaded_bytes(int stage) const;
  // What a stage needs beside activations and receive buffers.
  double model_bytes(int stage) const;
  friend bool operator==(const Costs&, const Costs&) = default;
};

// The costs of a schedule in which these stages recompute, which must be in range: there, I and B
// take the recomputation too, F saves checkpoint_bytes, and all of activation_bytes is in use only
// while I or B runs. A checkpoint counts as at most activation_bytes. A recomputation needs no
// gradient: it runs while that is on its way, if the rank has nothing else to do.
Costs recomputing(Costs costs, std::span<const int> stages, int num_stages);

// The costs of a schedule in which only these stages offload: for the others, offload_bytes is 0.
Costs offloading(Costs costs, std::span<const int> stages, int num_stages);

// The costs of one slice in the place of a microbatch, for a schedule whose microbatches are cut
// into so many slices: what a microbatch computes, keeps, copies and sends, divided by `slices`,
// and microbatch_scale by slice. The scales must have the lengths that check_costs() checks.
Costs sliced(Costs costs, int slices, int num_microbatches);

// A cost is 0 or within these limits, so that sums and products of costs neither overflow nor
// underflow.
inline constexpr double kLeastCost = 1e-12, kMostCost = 1e18;
inline bool is_cost(double value) {
  return value == 0 || (value >= kLeastCost && value <= kMostCost);
}
// "0 or a number from 1e-12 to 1e+18"
std::string cost_in_words();

// The values of Costs::overlap.
inline bool is_overlap(double value) { return is_cost(value) && value <= 1; }
// "0 or a number from 1e-12 to 1"
std::string overlap_in_words();

// A PerStage field of Costs, with its name in costs files.
struct StageCost {
  std::string_view name;
  PerStage Costs::*values;
};
std::span<const StageCost> stage_costs();

// The names that scale_cost() accepts: F, I, W, B (I and W), UNSHARD, RESHARD, REDUCE_GRAD, COMM
// (the latency and the time per byte of all links).
std::span<const std::string_view> scalable_costs();
// Multiplies a cost by `factor`. Returns false for an unknown name.
bool scale_cost(std::string_view name, double factor, Costs* costs);
// Makes these the costs of microbatches of `size` sequences, from 1. What a microbatch computes,
// keeps and sends is in proportion to its size; latencies are not, and kernels that are slower for
// small sizes are not modelled. Requires microbatch_size.
void resize_microbatches(int size, Costs* costs);
// Multiplies the durations of one rank's compute and data-parallel actions by `factor`. Transfers
// do not change.
void slow_rank(int rank, double factor, const ir::Placement& placement, Costs* costs);

// Durations for one placement, computed once per instance of a stage and kind, so that the duration
// of an action is a table lookup. Immutable; safe to use from any thread.
class CostTable {
 public:
  // The costs must fit the placement (check_costs).
  CostTable(const Costs& costs, const ir::Placement& placement);

  // The duration of an action that `rank` runs: of a SEND that of its transfer, of a RECV 0.
  double duration(const ir::Action& action, size_t rank) const {
    return duration_by(action, [&](ir::ActionPart part) { return instance_on(rank, part); });
  }
  int instance_on(size_t rank, ir::ActionPart part) const {
    return placement_.instance_on(static_cast<int>(rank), part.stage());
  }
  // The same if instance_of(part) is the instance that runs a part of it.
  template <typename InstanceOf>
  double duration_by(const ir::Action& action, const InstanceOf& instance_of) const {
    if (action.is_idle()) return 0;
    const auto of = [&](ir::ActionPart part) {
      const double base = of_kind(part.kind(), instance_of(part));
      return ir::is_compute(part.kind()) ? scaled(base, part) : base;
    };
    const double first = of(action.parts()[0]);
    if (!action.is_compound()) return first;
    const double second = of(action.parts()[1]);
    return first + second - overlap_ * std::min(first, second);
  }
  // How long the transfer of a SEND takes.
  double of_send(ir::ActionPart send) const { return durations_[send]; }
  // How long the transfer of a stage's output takes to the rank of the next stage, and of its input
  // gradient to the rank of the previous stage. 0 if both stages are on one rank. Of an instance,
  // which is the stage if there is one replica.
  double output_transfer(int instance) const { return of_kind(ir::ActionKind::kSendF, instance); }
  double gradient_transfer(int instance) const { return of_kind(ir::ActionKind::kSendB, instance); }
  // How long before its gradient arrives an I or B of an instance can start: it recomputes first.
  // 0 for other kinds.
  double lead(ir::ActionPart part, int instance) const {
    if (!has_leads_ || !ir::gives_input_gradient(part.kind())) return 0;
    return scaled(lead(instance), part);
  }
  double lead(int instance) const { return leads_[static_cast<size_t>(instance)]; }  // at scale 1
  bool has_leads() const { return has_leads_; }
  // The duration of an action of this kind for a microbatch whose scale is 1.
  double of_kind(ir::ActionKind kind, int instance) const { return durations_.at(kind, instance); }

 private:
  double scaled(double base, ir::ActionPart part) const {
    return microbatch_scale_.empty()
               ? base
               : base * microbatch_scale_[static_cast<size_t>(part.microbatch())];
  }

  ir::Placement placement_;
  ir::StageKindTable<double> durations_;
  std::vector<double> leads_;  // by instance
  bool has_leads_ = false;     // whether any is not 0
  std::vector<double> microbatch_scale_;
  double overlap_;
};

// The places of costs in their file, for diagnostics: the values by key, and the links by ranks.
struct CostPlaces {
  std::map<std::string, ir::Place, std::less<>> values;
  std::map<std::pair<int, int>, ir::Place> links;
};

// Checks that costs fit a schedule: each number is a valid cost, each list has one number per
// stage, rank, microbatch (not counting slices) or slice, links are between ranks of the schedule,
// and durations are valid costs after rank_scale and microbatch_scale too. Adds an error for each
// violation. Returns whether there was none.
bool check_costs(const Costs& costs, const CostPlaces& places, const ir::Placement& placement,
                 int num_microbatches, ir::Diagnostics* diagnostics, int slices = 1);

// Checks costs that passed check_costs() and then scale_cost() and slow_rank(), any number of
// times: products of many factors can overflow.
bool check_factors(const Costs& costs, const ir::Placement& placement,
                   ir::Diagnostics* diagnostics);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_PROBLEM_COSTS_H_
