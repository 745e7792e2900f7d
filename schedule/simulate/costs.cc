#include "pipewright/schedule/simulate/costs.h"

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
    {"output_bytes", &Costs::output_bytes},
    {"input_gradient_bytes", &Costs::input_gradient_bytes},
    {"activation_bytes", &Costs::activation_bytes},
    {"weight_input_bytes", &Costs::weight_input_bytes},
    {"parameter_bytes", &Costs::parameter_bytes},
    {"gradient_bytes", &Costs::gradient_bytes},
};

constexpr std::string_view kScalable[] = {"F",       "B",       "I",           "W",
                                          "UNSHARD", "RESHARD", "REDUCE_GRAD", "COMM"};

double transfer(const Costs& costs, int from, int to, double bytes) {
  if (from == to) return 0;
  const auto own = costs.links.find({from, to});
  const Link& link = own == costs.links.end() ? costs.link : own->second;
  return link.latency + bytes / link.bandwidth;
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
         !activation_bytes.is_zero() || !weight_input_bytes.is_zero() ||
         !parameter_bytes.is_zero() || !gradient_bytes.is_zero();
}

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
    const auto scale_link = [&](Link& link) {
      link.latency *= factor;
      link.bandwidth /= factor;
    };
    scale_link(costs->link);
    for (auto& [ranks, link] : costs->links) scale_link(link);
  }
  return true;
}

void slow_rank(int rank, double factor, const ir::Placement& placement, Costs* costs) {
  costs->rank_scale.resize(static_cast<size_t>(placement.num_ranks()), 1);
  costs->rank_scale[static_cast<size_t>(rank)] *= factor;
}

CostTable::CostTable(const Costs& costs, const ir::Placement& placement)
    : durations_(static_cast<size_t>(placement.num_stages()) * kKinds),
      microbatch_scale_(costs.microbatch_scale) {
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
    // A slow rank's links are as fast as any.
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

std::optional<std::string> costs_error(const Costs& costs, const ir::Placement& placement,
                                       int num_microbatches) {
  const auto wrong_size = [](std::string_view name, size_t found, int wanted,
                             std::string_view each) {
    return fmt::format(
        "`{}` has {} numbers, and the schedule has {} {}: give one for each, or one "
        "for all",
        name, found, wanted, each);
  };
  for (const auto& [name, values] : kStageCosts) {
    const size_t size = (costs.*values).size();
    if (size != 1 && size != static_cast<size_t>(placement.num_stages()))
      return wrong_size(name, size, placement.num_stages(), "stages");
  }
  if (!costs.rank_scale.empty() &&
      costs.rank_scale.size() != static_cast<size_t>(placement.num_ranks()))
    return wrong_size("rank_scale", costs.rank_scale.size(), placement.num_ranks(), "ranks");
  if (!costs.microbatch_scale.empty() &&
      costs.microbatch_scale.size() != static_cast<size_t>(num_microbatches))
    return wrong_size("microbatch_scale", costs.microbatch_scale.size(), num_microbatches,
                      "microbatches");
  for (const auto& [ranks, link] : costs.links) {
    if (ranks.first >= placement.num_ranks() || ranks.second >= placement.num_ranks())
      return fmt::format("`links` has one from rank {} to rank {}, and the schedule has {} ranks",
                         ranks.first, ranks.second, placement.num_ranks());
  }
  return std::nullopt;
}

}  // namespace pipewright::schedule
