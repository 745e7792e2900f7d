#include "pipewright/schedule/problem/costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/ir/printable.h"
#include "pipewright/schedule/problem/layers.h"

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
        &Costs::weight_input_bytes, &Costs::recomputed_bytes})
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
    : durations_(placement), microbatch_scale_(costs.microbatch_scale), overlap_(costs.overlap) {
  for (int stage = 0; stage < placement.num_stages(); ++stage) {
    const int rank = placement.rank_of(stage);
    const auto set = [&](ActionKind kind, double duration) {
      durations_[ir::ActionPart(kind, stage)] = duration;
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

// Whether costs fit a schedule: the numbers of a file or a caller, and what factors make of them.

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

  Factor rank_factor(int stage) const {
    const int rank = placement_.rank_of(stage);
    return {costs_.rank_scale.empty() ? 1 : costs_.rank_scale[static_cast<size_t>(rank)],
            "rank_scale", fmt::format("`rank_scale`, --slow {}", rank)};
  }

  bool check_time(const TimedCost& timed) {
    for (int stage = 0; stage < placement_.num_stages(); ++stage) {
      const double time = table_.of_kind(timed.kind, stage);
      for (const Factor* microbatch : {&one_, &least_, &most_}) {
        if (!ir::is_compute(timed.kind) && microbatch != &one_) break;
        if (is_cost(time * microbatch->value)) continue;
        return check_product(fmt::format("{} of stage {}", timed.name, stage),
                             {cost(timed, stage), rank_factor(stage), *microbatch});
      }
    }
    return true;
  }

  // Takes as long as F, which is checked, unless `recompute` is above 1.
  bool check_recomputation() {
    for (int stage = 0; stage < placement_.num_stages(); ++stage) {
      const Factor part = {costs_.recompute.at(stage), "recompute", "`recompute`"};
      if (part.value > 1 &&
          !check_product(fmt::format("the recomputation of stage {}", stage),
                         {part, cost(kTimedCosts[0], stage), rank_factor(stage), most_}))
        return false;
    }
    return true;
  }

  void check_transfers() {
    for (int stage = 0; stage < placement_.num_stages(); ++stage) {
      if (!check_transfer(stage, stage + 1, "output_bytes", costs_.output_bytes,
                          table_.output_transfer(stage)) ||
          !check_transfer(stage, stage - 1, "input_gradient_bytes", costs_.input_gradient_bytes,
                          table_.gradient_transfer(stage)))
        return;
    }
  }

  bool check_transfer(int stage, int to, std::string_view key, const PerStage& bytes, double time) {
    // A latency of 1e18 is valid, and so is what `bytes` add to it.
    if (time <= 2 * kMostCost) return true;
    diagnostics_.error(
        ir::Rule::kBadValue,
        fmt::format("a transfer from rank {} to rank {}, {} bytes (`{}`) by `bandwidth` (--scale "
                    "COMM): expected at most {}, got {}",
                    placement_.rank_of(stage), placement_.rank_of(to), bytes.at(stage), key,
                    kMostCost, time),
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
