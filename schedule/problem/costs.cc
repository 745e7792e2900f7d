#include "pipewright/schedule/problem/costs.h"

#include <fmt/format.h>

#include <algorithm>

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
};

constexpr std::string_view kScalable[] = {"F",       "B",       "I",           "W",
                                          "UNSHARD", "RESHARD", "REDUCE_GRAD", "COMM"};

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

bool Costs::has_sizes() const {
  return !output_bytes.is_zero() || !input_gradient_bytes.is_zero() ||
         !activation_bytes.is_zero() || !recomputed_bytes.is_zero() ||
         !weight_input_bytes.is_zero() || !parameter_bytes.is_zero() || !gradient_bytes.is_zero();
}

double Costs::offloaded_bytes(int stage) const {
  return std::min(offload_bytes.at(stage), activation_bytes.at(stage));
}

Costs recomputing(Costs costs, std::span<const int> stages, int num_stages) {
  if (stages.empty()) return costs;
  std::vector<double> backward_input, activation, recomputed(static_cast<size_t>(num_stages));
  for (int stage = 0; stage < num_stages; ++stage) {
    backward_input.push_back(costs.backward_input.at(stage));
    activation.push_back(costs.activation_bytes.at(stage));
  }
  for (const int stage : stages) {
    const auto at = static_cast<size_t>(stage);
    backward_input[at] += costs.recompute.at(stage) * costs.forward.at(stage);
    const double whole = activation[at];
    activation[at] = std::min(costs.checkpoint_bytes.at(stage), whole);
    recomputed[at] = whole - activation[at];
  }
  costs.backward_input = PerStage(std::move(backward_input));
  costs.activation_bytes = PerStage(std::move(activation));
  costs.recomputed_bytes = PerStage(std::move(recomputed));
  return costs;
}

std::string cost_in_words() {
  return fmt::format("0 or a number from {} to {}", kLeastCost, kMostCost);
}

std::string overlap_in_words() { return fmt::format("0 or a number from {} to 1", kLeastCost); }

std::span<const StageCost> stage_costs() { return kStageCosts; }

std::span<const std::string_view> scalable_costs() { return kScalable; }

bool scale_cost(std::string_view name, double factor, Costs* costs) {
  if (std::ranges::find(kScalable, name) == std::end(kScalable)) return false;
  if (name == "F") costs->forward.scale(factor);
  if (name == "I" || name == "B") costs->backward_input.scale(factor);
  if (name == "W" || name == "B") costs->backward_weight.scale(factor);
  if (name == "UNSHARD") costs->unshard.scale(factor);
  if (name == "RESHARD") costs->reshard.scale(factor);
  if (name == "REDUCE_GRAD") costs->reduce_grad.scale(factor);
  if (name == "COMM") {
    costs->link.latency *= factor;
    costs->link.bandwidth /= factor;
    for (auto& [ranks, link] : costs->links) {
      if (link.latency) *link.latency *= factor;
      if (link.bandwidth) *link.bandwidth /= factor;
    }
  }
  return true;
}

void slow_rank(int rank, double factor, const ir::Placement& placement, Costs* costs) {
  costs->rank_scale.resize(static_cast<size_t>(placement.num_ranks()), 1);
  costs->rank_scale[static_cast<size_t>(rank)] *= factor;
}

CostTable::CostTable(const Costs& costs, const ir::Placement& placement)
    : durations_(static_cast<size_t>(placement.num_stages()) * kKinds),
      microbatch_scale_(costs.microbatch_scale),
      overlap_(costs.overlap) {
  for (int stage = 0; stage < placement.num_stages(); ++stage) {
    const int rank = placement.rank_of(stage);
    const auto set = [&](ActionKind kind, double duration) {
      durations_[static_cast<size_t>(stage) * kKinds + static_cast<size_t>(kind)] = duration;
    };
    const double scale = costs.rank_scale.empty() ? 1 : costs.rank_scale[static_cast<size_t>(rank)];
    const double input = costs.backward_input.at(stage), weight = costs.backward_weight.at(stage);
    set(ActionKind::kForward, scale * costs.forward.at(stage));
    set(ActionKind::kBackwardInput, scale * input);
    set(ActionKind::kBackwardWeight, scale * weight);
    set(ActionKind::kBackward, scale * (input + weight));
    set(ActionKind::kUnshard, scale * costs.unshard.at(stage));
    set(ActionKind::kReshard, scale * costs.reshard.at(stage));
    set(ActionKind::kReduceGrad, scale * costs.reduce_grad.at(stage));
    // rank_scale does not apply to transfers.
    if (stage + 1 < placement.num_stages()) {
      set(ActionKind::kSendF,
          transfer(costs, rank, placement.rank_of(stage + 1), costs.output_bytes.at(stage)));
    }
    if (stage > 0) {
      set(ActionKind::kSendB, transfer(costs, rank, placement.rank_of(stage - 1),
                                       costs.input_gradient_bytes.at(stage)));
    }
  }
}

}  // namespace pipewright::schedule
