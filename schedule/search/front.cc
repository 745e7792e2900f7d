#include "pipewright/schedule/search/front.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <utility>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/schedule/search/words.h"

namespace pipewright::schedule::search {
namespace {

struct Family {
  std::string_view name;
  int default_per_rank;
  int least_per_rank, multiple_per_rank;  // multiple 0: any number of stages
  std::string_view expected;
};
constexpr Family kFamilies[] = {
    {"loop", 1, 1, 0, "at least one stage per rank"},
    {"v", 2, 2, 1, "a multiple of the ranks, at least 2 stages per rank"},
    {"wave", 4, 4, 2, "an even number of stages per rank, at least 4"},
};

const Family& family_of(std::string_view name) {
  for (const Family& family : kFamilies) {
    if (family.name == name) return family;
  }
  throw std::invalid_argument(
      fmt::format("placement: expected loop, v or wave, got {}", ir::backticked(name)));
}

}  // namespace

int default_stages_per_rank(std::string_view name) { return family_of(name).default_per_rank; }

ir::Placement named_placement(std::string_view name, int ranks, int stages) {
  const Family& family = family_of(name);
  const auto refuse = [&](std::string_view expected) {
    throw std::invalid_argument(fmt::format("placement {}: expected {}, got {} stages on {} ranks",
                                            name, expected, stages, ranks));
  };
  if (stages > kMaxSearchStages) refuse(fmt::format("at most {} stages", kMaxSearchStages));
  const int per_rank = stages / ranks;
  if (per_rank < family.least_per_rank ||
      (family.multiple_per_rank > 0 &&
       (stages % ranks != 0 || per_rank % family.multiple_per_rank != 0)))
    refuse(family.expected);
  return family.multiple_per_rank > 0 ? ir::Placement::v(ranks, stages)
                                      : ir::Placement::loop(ranks, stages);
}

ir::Placement both_ways(const ir::Placement& placement, int num_microbatches, int slices) {
  const auto require_even = [](std::string_view what, int number) {
    if (number % 2 != 0)
      throw std::invalid_argument(
          fmt::format("replicas 2: expected an even number of {}, got {}", what, number));
  };
  require_even("ranks", placement.num_ranks());
  require_even("microbatches", num_microbatches);
  return ir::Placement::both_ways(placement, num_microbatches / 2 * slices);
}

namespace {

constexpr int kLevels = 8, kLeastLevel = 2;

// Limits of one search are parts of one another.
double amount(const MemoryBudget& memory) { return memory.limit().value_or(0).at(0); }

}  // namespace

Costs cut_stages(const Costs& costs, int stages, int parts) {
  Costs cut = costs;
  for (const StageCost& one : stage_costs()) {
    // A checkpoint is the input of a stage; `recompute` is a factor.
    const bool stays = one.values == &Costs::output_bytes ||
                       one.values == &Costs::input_gradient_bytes ||
                       one.values == &Costs::checkpoint_bytes || one.values == &Costs::recompute;
    PerStage& values = cut.*one.values;
    if (values.is_list()) {
      std::vector<double> list;
      for (int stage = 0; stage < stages * parts; ++stage)
        list.push_back((costs.*one.values).at(stage / parts));
      values = PerStage(std::move(list));
    }
    if (!stays) values.scale(1.0 / parts);
  }
  return cut;
}

std::vector<PlacementOption> placement_options(int ranks, int stages) {
  std::vector<PlacementOption> options;
  const auto add = [&](const char* name, int per_rank) {
    const int total = per_rank * ranks;
    if (total >= stages && total % stages == 0)
      options.push_back({name, named_placement(name, ranks, total), total / stages});
  };
  add("loop", 1);
  if (ranks == 1) return options;
  add("loop", 2);
  add("v", 2);
  add("wave", 4);
  return options;
}

std::vector<std::pair<FrontPoint, SearchRequest>> front_searches(
    const SearchRequest& request, const std::vector<PlacementOption>& options) {
  std::vector<std::pair<FrontPoint, SearchRequest>> searches;
  for (int level = kLevels; level >= (request.memory.is_set() ? kLeastLevel : kLevels); --level) {
    for (const PlacementOption& option : options) {
      SearchRequest one = request;
      one.placement = option.placement;
      one.memory = scaled(request.memory, static_cast<double>(level) / kLevels);
      searches.push_back({{option, one.memory, {}}, one});
    }
  }
  return searches;
}

void mark_best(std::vector<FrontPoint>* points) {
  for (FrontPoint& point : *points) {
    point.is_best = std::ranges::none_of(*points, [&](const FrontPoint& other) {
      const double memory = amount(point.memory), other_memory = amount(other.memory);
      const double cost = point.result.cost, other_cost = other.result.cost;
      return other_memory <= memory && other_cost <= cost &&
             (other_memory < memory || other_cost < cost);
    });
  }
}

std::vector<FrontPoint> search_front(const SearchRequest& request, int stages,
                                     const std::vector<PlacementOption>& options) {
  auto searches = front_searches(request, options);
  for (auto& [point, one] : searches)
    one.costs = cut_stages(request.costs, stages, point.option.parts);
  std::erase_if(searches,
                [](const auto& search) { return shortage_of(problem_of(search.second)); });
  std::vector<FrontPoint> points;
  for (auto& [point, one] : searches) {
    one.evaluations =
        std::max<int64_t>(1, request.evaluations / static_cast<int64_t>(searches.size()));
    try {
      point.result = search_schedule(one);
    } catch (const NothingFits&) {
      if (points.empty() && &one == &searches.back().second) throw;
      continue;
    }
    points.push_back(std::move(point));
    if (points.back().result.is_cancelled) break;
  }
  mark_best(&points);
  return points;
}

}  // namespace pipewright::schedule::search
