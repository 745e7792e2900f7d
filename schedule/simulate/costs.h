#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_COSTS_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_COSTS_H_

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

namespace pipewright::schedule {

// A number for each stage, or one for all of them.
class PerStage {
 public:
  PerStage(double all = 0) : values_{all} {}  // NOLINT: a number stands for all stages
  explicit PerStage(std::vector<double> values) : values_(std::move(values)) {}

  double at(int stage) const {
    return values_.size() == 1 ? values_[0] : values_[static_cast<size_t>(stage)];
  }
  // 1 for all stages, else their number.
  size_t size() const { return values_.size(); }
  bool is_zero() const;
  void scale(double factor);

  friend bool operator==(const PerStage&, const PerStage&) = default;

 private:
  std::vector<double> values_;  // never empty
};

// What a transfer takes: latency + bytes / bandwidth.
struct Link {
  double latency = 0;
  double bandwidth = std::numeric_limits<double>::infinity();  // bytes a unit of time

  friend bool operator==(const Link&, const Link&) = default;
};

// What the actions of a schedule cost: durations of one microbatch in any unit of time, sizes in
// bytes. B costs I + W, a compound the sum of its parts. COSTS.md describes the file. A plain
// value.
struct Costs {
  std::string unit = {};  // of time, for people: "ms"; empty where unknown

  PerStage forward = 1, backward_input = 1, backward_weight = 1;
  PerStage unshard = 0, reshard = 0, reduce_grad = 0;
  std::vector<double> rank_scale = {};  // times the actions of a rank; empty for 1
  std::vector<double> microbatch_scale =
      {};  // times the compute actions of a microbatch; empty for 1

  Link link = {};                                  // between ranks
  std::map<std::pair<int, int>, Link> links = {};  // from one rank to another, where it differs

  // Sizes of a microbatch, or of a stage. 0 where unknown.
  PerStage output_bytes = 0;          // what F sends on
  PerStage input_gradient_bytes = 0;  // what B or I sends back
  PerStage activation_bytes = 0;      // what F keeps for the backward
  PerStage weight_input_bytes = 0;    // the share of it, and of gradients, that I keeps for W
  PerStage parameter_bytes = 0;       // while unsharded
  PerStage gradient_bytes = 0;        // before they are reduced

  // Whether any of the sizes is known.
  bool has_sizes() const;
  friend bool operator==(const Costs&, const Costs&) = default;
};

// Costs are 0, or within these: what is made of them then neither overflows nor vanishes.
inline constexpr double kLeastCost = 1e-12, kMostCost = 1e18;
inline bool is_cost(double value) {
  return value == 0 || (value >= kLeastCost && value <= kMostCost);
}
// "0 or a number from 1e-12 to 1e+18"
std::string cost_in_words();

// The fields of Costs with a number a stage, by the names that files give them.
struct StageCost {
  std::string_view name;
  PerStage Costs::*values;
};
std::span<const StageCost> stage_costs();

// What can be scaled by name: F, I, W, B (I and W), UNSHARD, RESHARD, REDUCE_GRAD, COMM (latency
// and time a byte).
std::span<const std::string_view> scalable_costs();
// False for an unknown name.
bool scale_cost(std::string_view name, double factor, Costs* costs);
// Makes one rank's actions `factor` times as long.
void slow_rank(int rank, double factor, const ir::Placement& placement, Costs* costs);

// Costs for one placement and number of microbatches, made ready to be asked for every action.
class CostTable {
 public:
  // The costs must fit the placement (check_costs).
  CostTable(const Costs& costs, const ir::Placement& placement);

  // A SEND takes what its transfer does, a RECV none of its own, a compound the sum of its parts.
  double duration(const ir::Action& action) const {
    double sum = 0;
    for (const ir::ActionPart part : action.parts()) sum += duration(part);
    return sum;
  }
  double duration(ir::ActionPart part) const {
    const double base = of_kind(part.kind(), part.stage());
    return microbatch_scale_.empty() || !ir::is_compute(part.kind())
               ? base
               : base * microbatch_scale_[static_cast<size_t>(part.microbatch())];
  }
  // How long the output of a stage, or its input gradient, takes to the next stage's rank. 0 where
  // that is its own.
  double output_transfer(int stage) const { return of_kind(ir::ActionKind::kSendF, stage); }
  double gradient_transfer(int stage) const { return of_kind(ir::ActionKind::kSendB, stage); }
  // Of a microbatch whose scale is 1.
  double of_kind(ir::ActionKind kind, int stage) const {
    return durations_[static_cast<size_t>(stage) * kKinds + static_cast<size_t>(kind)];
  }

 private:
  static constexpr size_t kKinds = std::size(ir::kActionKinds) + 1;

  std::vector<double> durations_;  // by stage and kind
  std::vector<double> microbatch_scale_;
};

// Where costs are in their file, for diagnostics: the values of its keys, and its links.
struct CostPlaces {
  std::map<std::string, ir::Place, std::less<>> values;
  std::map<std::pair<int, int>, ir::Place> links;
};

// Whether costs fit a schedule: each number is a cost, a list has one number per stage, rank or
// microbatch, and links are between ranks of the schedule. Adds an error for each that does not.
bool check_costs(const Costs& costs, const CostPlaces& places, const ir::Placement& placement,
                 int num_microbatches, ir::Diagnostics* diagnostics);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_COSTS_H_
