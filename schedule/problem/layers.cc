#include "pipewright/schedule/problem/layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "pipewright/ir/check.h"

namespace pipewright::schedule {
namespace {

// One entry per layer.
std::vector<const LayerRun*> layers_of(const Costs& costs) {
  std::vector<const LayerRun*> layers;
  for (const LayerRun& run : costs.layers)
    layers.insert(layers.end(), static_cast<size_t>(run.count), &run);
  return layers;
}

// What a stage with these layers costs, of one of stage_costs(). `before` and `after` are the
// layers next to it, or null.
double cost_of(PerStage Costs::*cost, std::span<const LayerRun* const> layers,
               const LayerRun* before, const LayerRun* after) {
  if (cost == &Costs::output_bytes) {
    const LayerRun* last = layers.empty() ? before : layers.back();
    return last == nullptr ? 0 : (*last)[cost];
  }
  if (cost == &Costs::input_gradient_bytes) {
    const LayerRun* first = layers.empty() ? after : layers.front();
    return first == nullptr ? 0 : (*first)[cost];
  }
  double sum = 0, weighted = 0, forward = 0;
  for (const LayerRun* layer : layers) {
    sum += (*layer)[cost];
    forward += (*layer)[&Costs::forward];
    weighted += (*layer)[cost] * (*layer)[&Costs::forward];
  }
  if (cost != &Costs::recompute) return sum;
  return forward > 0 ? weighted / forward : 1;
}

}  // namespace

int num_layers(const Costs& costs) {
  int64_t layers = 0;
  for (const LayerRun& run : costs.layers) layers += run.count;
  return static_cast<int>(std::min<int64_t>(layers, std::numeric_limits<int>::max()));
}

bool is_above_zero(const Costs& costs, PerStage Costs::*cost) {
  return !(costs.*cost).is_zero() ||
         std::ranges::any_of(costs.layers, [cost](const LayerRun& run) { return run[cost] > 0; });
}

Cut even_cut(int num_layers, int num_stages) {
  Cut cut;
  for (int stage = 0; stage < num_stages; ++stage)
    cut.push_back(num_layers / num_stages + (stage < num_layers % num_stages ? 1 : 0));
  return cut;
}

Cut least_maximum_cut(const Costs& costs, const ir::Placement& placement) {
  const LayerSums work(costs, {&Costs::forward, &Costs::backward_input, &Costs::backward_weight});
  const int stages = placement.num_stages(), layers = work.num_layers();
  const auto scale = [&](int stage) {
    return costs.rank_scale.empty()
               ? 1
               : costs.rank_scale[static_cast<size_t>(placement.rank_of(stage))];
  };
  // Stages take layers in turn while they stay within `most`. What is left goes to the last one.
  const auto cut_within = [&](double most) {
    Cut cut;
    int first = 0;
    for (int stage = 0; stage < stages; ++stage) {
      int last = stage + 1 == stages ? layers : first;
      while (last < layers && scale(stage) * work.over(first, last + 1) <= most) ++last;
      cut.push_back(last - first);
      first = last;
    }
    return cut;
  };
  const auto maximum_of = [&](const Cut& cut) {
    double most = 0;
    int first = 0;
    for (int stage = 0; stage < stages; ++stage) {
      const int last = first + cut[static_cast<size_t>(stage)];
      most = std::max(most, scale(stage) * work.over(first, last));
      first = last;
    }
    return most;
  };
  Cut best = even_cut(layers, stages);
  double low = 0, high = maximum_of(best);
  // Each step halves the range, and no two maxima are nearer than this.
  for (int step = 0; step < 64 && low < high; ++step) {
    const double middle = low + (high - low) / 2;
    Cut cut = cut_within(middle);
    if (const double most = maximum_of(cut); most <= middle * (1 + 1e-12)) {
      best = std::move(cut);
      high = std::min(most, middle);
    } else {
      low = middle;
    }
  }
  return best;
}

// Blocks are alike, so each goes to the stage that is the cheapest so far: any other choice would
// make some stage at least as expensive.
Cut balanced_cut(int num_blocks, int num_stages, const PartCosts& costs) {
  Cut cut(static_cast<size_t>(num_stages), 0);
  std::vector<double> stages(cut.size(), 0);
  stages.front() += costs.embedding;
  stages.back() += costs.output;
  for (int block = 0; block < num_blocks; ++block) {
    const auto cheapest = std::min_element(stages.rbegin(), stages.rend());
    *cheapest += costs.block;
    ++cut[static_cast<size_t>(stages.rend() - cheapest) - 1];
  }
  return cut;
}

std::vector<LayerRange> layer_ranges(const Cut& cut) {
  std::vector<LayerRange> ranges;
  int first = 0;
  for (const int count : cut) {
    ranges.push_back({first, first + count});
    first += count;
  }
  return ranges;
}

Costs cut_layers(const Costs& costs, const Cut& cut) {
  const std::vector<const LayerRun*> layers = layers_of(costs);
  PW_CHECK(std::accumulate(cut.begin(), cut.end(), size_t{0}) == layers.size(),
           "a cut has all layers");
  Costs stages = costs;
  stages.layers.clear();
  stages.cut.clear();
  for (const StageCost& one : stage_costs()) {
    std::vector<double> values;
    size_t first = 0;
    for (const int count : cut) {
      const size_t last = first + static_cast<size_t>(count);
      values.push_back(cost_of(one.values, std::span(layers).subspan(first, last - first),
                               first > 0 ? layers[first - 1] : nullptr,
                               last < layers.size() ? layers[last] : nullptr));
      first = last;
    }
    stages.*one.values = PerStage(std::move(values));
  }
  return stages;
}

std::optional<Costs> cut_layers(const Costs& costs, const Cut& own_cut, const CostPlaces& places,
                                int num_stages, ir::Diagnostics* diagnostics) {
  const std::optional<Cut> cut = cut_of(costs, own_cut, places, num_stages, diagnostics);
  if (!cut) return std::nullopt;
  return costs.layers.empty() ? costs : cut_layers(costs, *cut);
}

std::optional<Cut> cut_of(const Costs& costs, const Cut& own_cut, const CostPlaces& places,
                          int num_stages, ir::Diagnostics* diagnostics) {
  const size_t before = diagnostics->total();
  const auto refuse = [&](ir::Rule rule, std::string_view key, const std::string& message) {
    const auto place = places.values.find(key);
    diagnostics->error(rule, message, place == places.values.end() ? ir::Place() : place->second);
  };
  if (costs.layers.empty()) {
    if (costs.cut.empty()) return Cut();
    refuse(ir::Rule::kCostsMismatch, "cut", "`cut`: expected `layers` beside it, got none");
    return std::nullopt;
  }
  const Costs defaults;
  for (const StageCost& one : stage_costs()) {
    if (costs.*one.values == defaults.*one.values) continue;
    refuse(ir::Rule::kBadValue, one.name,
           fmt::format("`{}` of stages: expected none beside `layers`, which have their own",
                       one.name));
  }
  constexpr int kMostLayers = 100'000;
  const int layers = num_layers(costs);
  if (layers > kMostLayers)
    refuse(ir::Rule::kBadValue, "layers",
           fmt::format("`layers`: expected at most {}, got {}", kMostLayers, layers));
  for (const LayerRun& run : costs.layers) {
    if (run.count < 1)
      refuse(ir::Rule::kBadValue, "layers",
             fmt::format("`count` of layers: expected a whole number from 1, got {}", run.count));
    for (size_t row = 0; row < run.values.size(); ++row) {
      if (is_cost(run.values[row])) continue;
      refuse(ir::Rule::kBadValue, "layers",
             fmt::format("`{}` of a layer: expected {}, got {}", stage_costs()[row].name,
                         cost_in_words(), run.values[row]));
    }
  }
  if (diagnostics->total() > before) return std::nullopt;
  const Cut& given = costs.cut.empty() ? own_cut : costs.cut;
  const Cut cut = given.empty() ? even_cut(layers, num_stages) : given;
  const int64_t sum = std::accumulate(cut.begin(), cut.end(), int64_t{0});
  if (cut.size() != static_cast<size_t>(num_stages)) {
    refuse(ir::Rule::kCostsMismatch, "cut",
           fmt::format("the cut {}: expected {}, one per stage, got {}", fmt::join(cut, ","),
                       num_stages == 1 ? "1 number" : fmt::format("{} numbers", num_stages),
                       cut.size()));
  } else if (sum != layers || std::ranges::min(cut) < 0) {
    refuse(ir::Rule::kCostsMismatch, "cut",
           fmt::format("the cut {}: expected {} layers in all, got {}", fmt::join(cut, ","), layers,
                       sum));
  }
  return diagnostics->total() > before ? std::nullopt : std::optional(cut);
}

LayerSums::LayerSums(const Costs& costs, std::initializer_list<PerStage Costs::*> summed) {
  for (const LayerRun& run : costs.layers) {
    double one = 0;
    for (PerStage Costs::*cost : summed) one += run[cost];
    for (int layer = 0; layer < run.count; ++layer) sums_.push_back(sums_.back() + one);
  }
}

}  // namespace pipewright::schedule
