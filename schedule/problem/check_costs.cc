// Whether costs fit a schedule: the numbers of a file or a caller, and what factors make of them.
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pipewright/ir/printable.h"
#include "pipewright/schedule/problem/costs.h"
#include "pipewright/schedule/problem/layers.h"

namespace pipewright::schedule {

using ir::ActionKind;

namespace {

// A duration that factors multiply, and the options that change it.
struct TimedCost {
  ActionKind kind;
  std::string_view name;  // of the action
  StageCost cost;
  std::string_view flag, scale;  // "--forward" or ""; KIND of --scale

  std::string scale_option() const { return fmt::format("--scale {}", scale); }
  std::string options() const {
    return flag.empty() ? scale_option() : fmt::format("{}, {}", flag, scale_option());
  }
};
constexpr TimedCost kTimedCosts[] = {
    {ActionKind::kForward, "F", {"forward", &Costs::forward}, "--forward", "F"},
    {ActionKind::kBackwardInput,
     "I",
     {"backward_input", &Costs::backward_input},
     "--backward-input",
     "I or B"},
    {ActionKind::kBackwardWeight,
     "W",
     {"backward_weight", &Costs::backward_weight},
     "--backward-weight",
     "W or B"},
    {ActionKind::kUnshard, "UNSHARD", {"unshard", &Costs::unshard}, "", "UNSHARD"},
    {ActionKind::kReshard, "RESHARD", {"reshard", &Costs::reshard}, "", "RESHARD"},
    {ActionKind::kReduceGrad,
     "REDUCE_GRAD",
     {"reduce_grad", &Costs::reduce_grad},
     "",
     "REDUCE_GRAD"},
};

ir::Place place_of(std::string_view key, const CostPlaces& places) {
  const auto entry = places.values.find(key);
  return entry == places.values.end() ? ir::Place() : entry->second;
}

// Checks the durations of costs that are valid each: each may be 1e18, and their products not.
class DurationChecker {
 public:
  DurationChecker(const Costs& costs, const CostPlaces& places, const ir::Placement& placement,
                  ir::Diagnostics* diagnostics)
      : costs_(costs),
        table_(costs, placement),
        places_(places),
        placement_(placement),
        diagnostics_(*diagnostics) {
    const std::vector<double>& scale = costs.microbatch_scale;
    for (size_t index = 0; index < scale.size(); ++index) {
      if (scale[index] == 0) continue;
      const Factor one = {scale[index], "microbatch_scale",
                          fmt::format("`microbatch_scale` of microbatch {}", index)};
      if (one.value < least_.value) least_ = one;
      if (one.value > most_.value) most_ = one;
    }
  }

  // Adds at most one error, because one factor can spoil many durations.
  void check() {
    const bool good =
        std::ranges::all_of(kTimedCosts, [&](const TimedCost& timed) { return check_time(timed); });
    if (good && check_recomputation()) check_transfers();
  }

 private:
  struct Factor {
    double value = 1;
    std::string_view key = {};
    std::string origin = {};  // "`rank_scale`, --slow 1"
  };

  // Returns whether the product is valid.
  bool check_product(const std::string& what, std::initializer_list<Factor> factors) {
    double product = 1;
    for (const Factor& factor : factors) product *= factor.value;
    if (is_cost(product)) return true;
    std::string text;
    ir::Place place;
    for (const Factor& factor : factors) {
      if (factor.value == 1) continue;
      if (!place.offset) place = place_of(factor.key, places_);
      text += fmt::format("{}{} ({})", text.empty() ? "" : " x ", factor.value, factor.origin);
    }
    diagnostics_.error(
        ir::Rule::kBadValue,
        fmt::format("{}, {}: expected {}, got {}", what, text, cost_in_words(), product), place);
    return false;
  }

  Factor cost(const TimedCost& timed, int stage) const {
    const auto& [name, values] = timed.cost;
    return {(costs_.*values).at(stage), name, fmt::format("`{}`, {}", name, timed.options())};
  }

  Factor rank_factor(int instance) const {
    const int rank = placement_.rank_of_instance(instance);
    return {costs_.rank_scale.empty() ? 1 : costs_.rank_scale[static_cast<size_t>(rank)],
            "rank_scale", fmt::format("`rank_scale`, --slow {}", rank)};
  }

  bool check_time(const TimedCost& timed) {
    for (int instance = 0; instance < placement_.num_instances(); ++instance) {
      const int stage = placement_.stage_of_instance(instance);
      const double time = table_.of_kind(timed.kind, instance);
      for (const Factor* microbatch : {&one_, &least_, &most_}) {
        if (!ir::is_compute(timed.kind) && microbatch != &one_) break;
        if (is_cost(time * microbatch->value)) continue;
        return check_product(fmt::format("{} of stage {}", timed.name, stage),
                             {cost(timed, stage), rank_factor(instance), *microbatch});
      }
    }
    return true;
  }

  // Takes as long as F, which is checked, unless `recompute` is above 1.
  bool check_recomputation() {
    for (int instance = 0; instance < placement_.num_instances(); ++instance) {
      const int stage = placement_.stage_of_instance(instance);
      const Factor part = {costs_.recompute.at(stage), "recompute", "`recompute`"};
      if (part.value > 1 &&
          !check_product(fmt::format("the recomputation of stage {}", stage),
                         {part, cost(kTimedCosts[0], stage), rank_factor(instance), most_}))
        return false;
    }
    return true;
  }

  void check_transfers() {
    for (int one = 0; one < placement_.num_instances(); ++one) {
      if (!check_transfer(one, one + 1, "output_bytes", costs_.output_bytes,
                          table_.output_transfer(one)) ||
          !check_transfer(one, one - 1, "input_gradient_bytes", costs_.input_gradient_bytes,
                          table_.gradient_transfer(one)))
        return;
    }
  }

  // Between two instances.
  bool check_transfer(int from, int to, std::string_view key, const PerStage& bytes, double time) {
    // A latency of 1e18 is valid, and so is what `bytes` add to it.
    if (time <= 2 * kMostCost) return true;
    diagnostics_.error(
        ir::Rule::kBadValue,
        fmt::format("a transfer from rank {} to rank {}, {} bytes (`{}`) by `bandwidth` (--scale "
                    "COMM): expected at most {}, got {}",
                    placement_.rank_of_instance(from), placement_.rank_of_instance(to),
                    bytes.at(placement_.stage_of_instance(from)), key, kMostCost, time),
        place_of("bandwidth", places_));
    return false;
  }

  const Costs& costs_;
  const CostTable table_;
  const CostPlaces& places_;
  const ir::Placement& placement_;
  ir::Diagnostics& diagnostics_;
  Factor one_;
  Factor least_, most_;  // of the microbatches' factors and 1
};

}  // namespace

bool check_costs(const Costs& costs, const CostPlaces& places, const ir::Placement& placement,
                 int num_microbatches, ir::Diagnostics* diagnostics, int slices) {
  if (!costs.layers.empty()) {
    const std::optional<Costs> of_stages =
        cut_layers(costs, {}, places, placement.num_stages(), diagnostics);
    return of_stages &&
           check_costs(*of_stages, places, placement, num_microbatches, diagnostics, slices);
  }
  const size_t before = diagnostics->total();
  const auto check_number = [&](std::string_view key, double number, const ir::Place& place) {
    if (is_cost(number)) return;
    diagnostics->error(ir::Rule::kBadValue,
                       fmt::format("`{}`: expected {}, got {}", key, cost_in_words(), number),
                       place);
  };
  const auto check_size = [&](std::string_view key, size_t size, int expected,
                              std::string_view each, std::string_view help) {
    if (size == static_cast<size_t>(expected)) return;
    diagnostics
        ->error(ir::Rule::kCostsMismatch,
                fmt::format("`{}`: expected {}, one per {}, got {}", key,
                            ir::counted(expected, "number", "numbers"), each, size),
                place_of(key, places))
        .help = help;
  };
  for (const auto& [name, member] : stage_costs()) {
    const PerStage& values = costs.*member;
    if (values.is_list())
      check_size(name, values.values().size(), placement.num_stages(), "stage",
                 "one number instead of the list holds for all stages");
    for (const double value : values.values()) check_number(name, value, place_of(name, places));
  }
  const auto check_list = [&](std::string_view key, const std::vector<double>& list, int expected,
                              std::string_view each) {
    if (!list.empty()) check_size(key, list.size(), expected, each, "");
    for (const double number : list) check_number(key, number, place_of(key, places));
  };
  check_list("rank_scale", costs.rank_scale, placement.num_ranks(), "rank");
  check_list("microbatch_scale", costs.microbatch_scale, num_microbatches, "microbatch");
  // Whole microbatches do not read it.
  const int scales = slices > 1 ? slices : static_cast<int>(costs.slice_scale.size());
  check_list("slice_scale", costs.slice_scale, scales, "slice");
  check_list("rank_memory_bytes", costs.rank_memory_bytes, placement.num_ranks(), "rank");
  if (!costs.rank_memory_bytes.empty() && costs.activation_bytes.is_zero())
    diagnostics->error(ir::Rule::kBadValue,
                       "`rank_memory_bytes`: expected `activation_bytes` above 0 beside it, got 0",
                       place_of("rank_memory_bytes", places));
  if (!is_overlap(costs.overlap))
    diagnostics->error(
        ir::Rule::kBadValue,
        fmt::format("`overlap`: expected {}, got {}", overlap_in_words(), costs.overlap),
        place_of("overlap", places));
  // The default, infinity, is not a valid cost, so check_number does not apply.
  const auto check_bandwidth = [&](double bandwidth, const ir::Place& place) {
    if (bandwidth > 0) return;
    diagnostics->error(
        ir::Rule::kBadValue,
        fmt::format("`bandwidth`: expected bytes per unit of time, above 0, got {}", bandwidth),
        place);
  };
  check_number("latency", costs.link.latency, place_of("latency", places));
  check_bandwidth(costs.link.bandwidth, place_of("bandwidth", places));
  for (const auto& [ranks, link] : costs.links) {
    const auto entry = places.links.find(ranks);
    const ir::Place place = entry == places.links.end() ? ir::Place() : entry->second;
    if (link.latency) check_number("latency", *link.latency, place);
    if (link.bandwidth) check_bandwidth(*link.bandwidth, place);
    for (const int rank : {ranks.first, ranks.second}) {
      if (rank >= 0 && rank < placement.num_ranks()) continue;
      diagnostics->error(ir::Rule::kCostsMismatch,
                         fmt::format("a link from rank {} to rank {}: expected ranks 0 to {}, got "
                                     "rank {}",
                                     ranks.first, ranks.second, placement.num_ranks() - 1, rank),
                         place);
    }
  }
  if (diagnostics->total() == before)
    DurationChecker(costs, places, placement, diagnostics).check();
  return diagnostics->total() == before;
}

bool check_factors(const Costs& costs, const ir::Placement& placement,
                   ir::Diagnostics* diagnostics) {
  const size_t before = diagnostics->total();
  const auto refuse = [&](double number, const std::string& what, std::string_view option) {
    diagnostics->error(ir::Rule::kBadValue, fmt::format("{} after {}: expected {}, got {}", what,
                                                        option, cost_in_words(), number));
  };
  for (const TimedCost& timed : kTimedCosts) {
    for (int stage = 0; stage < placement.num_stages(); ++stage) {
      const double time = (costs.*timed.cost.values).at(stage);
      if (is_cost(time)) continue;
      refuse(time, fmt::format("`{}` of stage {}", timed.cost.name, stage), timed.scale_option());
      break;
    }
  }
  for (size_t rank = 0; rank < costs.rank_scale.size(); ++rank) {
    if (is_cost(costs.rank_scale[rank])) continue;
    refuse(costs.rank_scale[rank], fmt::format("`rank_scale` of rank {}", rank),
           fmt::format("--slow {}", rank));
  }
  const auto check_link = [&](std::optional<double> latency, std::optional<double> bandwidth,
                              const std::string& of) {
    if (latency && !is_cost(*latency)) refuse(*latency, "`latency` of " + of, "--scale COMM");
    if (!bandwidth || *bandwidth > 0) return;
    diagnostics->error(ir::Rule::kBadValue,
                       fmt::format("`bandwidth` of {} after --scale COMM: expected bytes per unit "
                                   "of time, above 0, got {}",
                                   of, *bandwidth));
  };
  check_link(costs.link.latency, costs.link.bandwidth, "all links");
  for (const auto& [ranks, link] : costs.links)
    check_link(link.latency, link.bandwidth,
               fmt::format("the link from rank {} to rank {}", ranks.first, ranks.second));
  if (diagnostics->total() == before) DurationChecker(costs, {}, placement, diagnostics).check();
  return diagnostics->total() == before;
}

}  // namespace pipewright::schedule
