#include "pipewright/schedule/problem/costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace pipewright::schedule {
namespace {

using ir::ActionKind;

constexpr StageCost kStageCosts[] = {
    {"forward", &Costs::forward},
    {"backward_input", &Costs::backward_input},
    {"backward_weight", &Costs::backward_weight},
    {"unshard", &Costs::unshard},
    {"reshard", &Costs::reshard},
    {"reduce_grad", &Costs::reduce_grad},
    {"recompute", &Costs::recompute},
    {"offload", &Costs::offload},
    {"reload", &Costs::reload},
    {"output_bytes", &Costs::output_bytes},
    {"input_gradient_bytes", &Costs::input_gradient_bytes},
    {"activation_bytes", &Costs::activation_bytes},
    {"checkpoint_bytes", &Costs::checkpoint_bytes},
    {"offload_bytes", &Costs::offload_bytes},
    {"weight_input_bytes", &Costs::weight_input_bytes},
    {"parameter_bytes", &Costs::parameter_bytes},
    {"gradient_bytes", &Costs::gradient_bytes},
    {"shard_bytes", &Costs::shard_bytes},
    {"optimizer_bytes", &Costs::optimizer_bytes},
};

static_assert(std::size(kStageCosts) == kNumStageCosts);

// The names of scale_cost(), and the fields that each of them scales. COMM scales links instead.
struct ScalableCost {
  std::string_view name;
  PerStage Costs::*first = nullptr;
  PerStage Costs::*second = nullptr;
};
constexpr ScalableCost kScalable[] = {
    {"F", &Costs::forward},
    {"B", &Costs::backward_input, &Costs::backward_weight},
    {"I", &Costs::backward_input},
    {"W", &Costs::backward_weight},
    {"UNSHARD", &Costs::unshard},
    {"RESHARD", &Costs::reshard},
    {"REDUCE_GRAD", &Costs::reduce_grad},
    {"COMM"},
};
constexpr auto kScalableNames = [] {
  std::array<std::string_view, std::size(kScalable)> names;
  std::ranges::transform(kScalable, names.begin(), &ScalableCost::name);
  return names;
}();

double transfer(const Costs& costs, int from, int to, double bytes) {
  if (from == to) return 0;
  const auto entry = costs.links.find({from, to});
  const OwnLink own = entry == costs.links.end() ? OwnLink() : entry->second;
  return own.latency.value_or(costs.link.latency) +
         bytes / own.bandwidth.value_or(costs.link.bandwidth);
}

}  // namespace

bool PerStage::is_zero() const {
  return std::ranges::all_of(values_, [](double value) { return value == 0; });
}

void PerStage::scale(double factor) {
  for (double& value : values_) value *= factor;
}

LayerRun::LayerRun() {
  const Costs defaults;
  for (size_t row = 0; row < kNumStageCosts; ++row)
    values[row] = (defaults.*kStageCosts[row].values).at(0);
}

double& LayerRun::operator[](PerStage Costs::*cost) {
  return values[static_cast<size_t>(std::ranges::find(kStageCosts, cost, &StageCost::values) -
                                    std::begin(kStageCosts))];
}

double LayerRun::operator[](PerStage Costs::*cost) const { return LayerRun(*this)[cost]; }

bool Costs::has_sizes() const {
  return !output_bytes.is_zero() || !input_gradient_bytes.is_zero() ||
         !activation_bytes.is_zero() || !recomputed_bytes.is_zero() ||
         !weight_input_bytes.is_zero() || !parameter_bytes.is_zero() || !gradient_bytes.is_zero() ||
         !shard_bytes.is_zero() || !optimizer_bytes.is_zero();
}

double Costs::model_bytes(int stage) const {
  return parameter_bytes.at(stage) + gradient_bytes.at(stage) + shard_bytes.at(stage) +
         optimizer_bytes.at(stage);
}

double Costs::offloaded_bytes(int stage) const {
  return std::min(offload_bytes.at(stage), activation_bytes.at(stage));
}

Costs offloading(Costs costs, std::span<const int> stages, int num_stages) {
  if (costs.offload_bytes.is_zero()) return costs;
  std::vector<double> bytes(static_cast<size_t>(num_stages));
  for (const int stage : stages) bytes[static_cast<size_t>(stage)] = costs.offload_bytes.at(stage);
  costs.offload_bytes = PerStage(std::move(bytes));
  return costs;
}

Costs recomputing(Costs costs, std::span<const int> stages, int num_stages) {
  if (stages.empty()) return costs;
  std::vector<double> backward_input, activation;
  std::vector<double> recomputed(static_cast<size_t>(num_stages)), recomputation = recomputed;
  for (int stage = 0; stage < num_stages; ++stage) {
    backward_input.push_back(costs.backward_input.at(stage));
    activation.push_back(costs.activation_bytes.at(stage));
  }
  for (const int stage : stages) {
    const auto at = static_cast<size_t>(stage);
    recomputation[at] = costs.recompute.at(stage) * costs.forward.at(stage);
    backward_input[at] += recomputation[at];
    const double whole = activation[at];
    activation[at] = std::min(costs.checkpoint_bytes.at(stage), whole);
    recomputed[at] = whole - activation[at];
  }
  costs.backward_input = PerStage(std::move(backward_input));
  costs.activation_bytes = PerStage(std::move(activation));
  costs.recomputed_bytes = PerStage(std::move(recomputed));
  costs.recomputation = PerStage(std::move(recomputation));
  return costs;
}

Costs sliced(Costs costs, int slices, int num_microbatches) {
  if (slices == 1) return costs;
  std::vector<double> scale;
  for (int u = 0; u < num_microbatches; ++u) {
    const auto slice = static_cast<size_t>(u % slices),
               microbatch = static_cast<size_t>(u / slices);
    scale.push_back((costs.slice_scale.empty() ? 1 : costs.slice_scale[slice]) *
                    (costs.microbatch_scale.empty() ? 1 : costs.microbatch_scale[microbatch]));
  }
  const bool is_even = std::ranges::all_of(scale, [](double factor) { return factor == 1; });
  costs.microbatch_scale = is_even ? std::vector<double>() : std::move(scale);
  costs.slice_scale.clear();
  costs.slices = slices;
  for (PerStage Costs::*of_microbatch :
       {&Costs::forward, &Costs::backward_input, &Costs::backward_weight, &Costs::offload,
        &Costs::reload, &Costs::output_bytes, &Costs::input_gradient_bytes,
        &Costs::activation_bytes, &Costs::checkpoint_bytes, &Costs::offload_bytes,
        &Costs::weight_input_bytes, &Costs::recomputed_bytes, &Costs::recomputation})
    (costs.*of_microbatch).scale(1.0 / slices);
  return costs;
}

std::string cost_in_words() {
  return fmt::format("0 or a number from {} to {}", kLeastCost, kMostCost);
}

std::string overlap_in_words() { return fmt::format("0 or a number from {} to 1", kLeastCost); }

std::span<const StageCost> stage_costs() { return kStageCosts; }

std::span<const std::string_view> scalable_costs() { return kScalableNames; }

bool scale_cost(std::string_view name, double factor, Costs* costs) {
  const auto cost = std::ranges::find(kScalable, name, &ScalableCost::name);
  if (cost == std::end(kScalable)) return false;
  for (PerStage Costs::*field : {cost->first, cost->second}) {
    if (field == nullptr) continue;
    if (costs->layers.empty()) (costs->*field).scale(factor);
    for (LayerRun& run : costs->layers) run[field] *= factor;
  }
  if (cost->first == nullptr) {
    costs->link.latency *= factor;
    costs->link.bandwidth /= factor;
    for (auto& [ranks, link] : costs->links) {
      if (link.latency) *link.latency *= factor;
      if (link.bandwidth) *link.bandwidth /= factor;
    }
  }
  return true;
}

void resize_microbatches(int size, Costs* costs) {
  PW_CHECK(costs->microbatch_size > 0, "the size of the microbatches is known");
  const double factor = static_cast<double>(size) / costs->microbatch_size;
  for (PerStage Costs::*field :
       {&Costs::forward, &Costs::backward_input, &Costs::backward_weight, &Costs::offload,
        &Costs::reload, &Costs::output_bytes, &Costs::input_gradient_bytes,
        &Costs::activation_bytes, &Costs::checkpoint_bytes, &Costs::offload_bytes,
        &Costs::weight_input_bytes}) {
    if (costs->layers.empty()) (costs->*field).scale(factor);
    for (LayerRun& run : costs->layers) run[field] *= factor;
  }
  costs->microbatch_size = size;
}

void slow_rank(int rank, double factor, const ir::Placement& placement, Costs* costs) {
  costs->rank_scale.resize(static_cast<size_t>(placement.num_ranks()), 1);
  costs->rank_scale[static_cast<size_t>(rank)] *= factor;
}

CostTable::CostTable(const Costs& costs, const ir::Placement& placement)
    : placement_(placement),
      durations_(placement),
      microbatch_scale_(costs.microbatch_scale),
      overlap_(costs.overlap) {
  for (int instance = 0; instance < placement.num_instances(); ++instance) {
    const int stage = placement.stage_of_instance(instance);
    const int rank = placement.rank_of_instance(instance);
    const auto set = [&](ActionKind kind, double duration) {
      durations_.at(kind, instance) = duration;
    };
    const double scale = costs.rank_scale.empty() ? 1 : costs.rank_scale[static_cast<size_t>(rank)];
    const double input = costs.backward_input.at(stage), weight = costs.backward_weight.at(stage);
    leads_.push_back(scale * costs.recomputation.at(stage));
    has_leads_ = has_leads_ || leads_.back() > 0;
    set(ActionKind::kForward, scale * costs.forward.at(stage));
    set(ActionKind::kBackwardInput, scale * input);
    set(ActionKind::kBackwardWeight, scale * weight);
    set(ActionKind::kBackward, scale * (input + weight));
    set(ActionKind::kUnshard, scale * costs.unshard.at(stage));
    set(ActionKind::kReshard, scale * costs.reshard.at(stage));
    set(ActionKind::kReduceGrad, scale * costs.reduce_grad.at(stage));
    // rank_scale does not apply to transfers.
    if (stage + 1 < placement.num_stages()) {
      set(ActionKind::kSendF, transfer(costs, rank, placement.rank_of_instance(instance + 1),
                                       costs.output_bytes.at(stage)));
    }
    if (stage > 0) {
      set(ActionKind::kSendB, transfer(costs, rank, placement.rank_of_instance(instance - 1),
                                       costs.input_gradient_bytes.at(stage)));
    }
  }
}

}  // namespace pipewright::schedule
