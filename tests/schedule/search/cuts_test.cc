// Cuts and orders together, against every cut and every order of small problems.
#include "pipewright/schedule/search/cuts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/search/cut_bound.h"
#include "pipewright/schedule/search/least_work.h"
#include "tests/schedule/bounds/plain_orders.h"

namespace pipewright::schedule::search {
namespace {

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  int number(int least, int most) {
    return least + static_cast<int>(engine_() % static_cast<unsigned>(most - least + 1));
  }
  bool chance(int percent) { return number(1, 100) <= percent; }

 private:
  std::mt19937 engine_;
};

std::vector<Cut> all_cuts(int layers, int stages) {
  if (stages == 1) return {{layers}};
  std::vector<Cut> cuts;
  for (int first = 0; first <= layers; ++first) {
    for (Cut rest : all_cuts(layers - first, stages - 1)) {
      rest.insert(rest.begin(), first);
      cuts.push_back(std::move(rest));
    }
  }
  return cuts;
}

// Layers that differ, ranks that differ in speed and memory, links.
SearchRequest random_request(Random& random) {
  SearchRequest request;
  const int kind = random.number(0, 9);
  request.placement = kind < 6   ? ir::Placement::loop(2, 2)
                      : kind < 8 ? ir::Placement::loop(3, 3)
                      : kind < 9 ? ir::Placement::v(1, 2)
                                 : ir::Placement::v(2, 4);
  const int stages = request.placement.num_stages(), ranks = request.placement.num_ranks();
  request.num_microbatches = stages == 2 && ranks == 2 ? random.number(1, 3) : stages > 3 ? 1 : 2;
  const int layers = stages + random.number(0, stages > 3 ? 1 : 3);
  const int slowest = random.chance(30) ? 1 : 9;
  Costs& costs = request.costs;
  const bool differ = random.chance(50);  // ranks and what crosses cuts
  for (int layer = 0; layer < layers; ++layer) {
    LayerRun run;
    run[&Costs::forward] = random.number(1, slowest);
    run[&Costs::backward_input] = random.number(0, slowest);
    run[&Costs::backward_weight] = random.number(0, slowest);
    run[&Costs::output_bytes] = differ ? random.number(0, 3) : 2;
    run[&Costs::input_gradient_bytes] = differ ? random.number(0, 3) : 1;
    run[&Costs::activation_bytes] = random.number(1, 6);
    run[&Costs::weight_input_bytes] = random.number(0, 3);
    run[&Costs::parameter_bytes] = random.number(0, 4);
    run[&Costs::optimizer_bytes] = random.number(0, 4);
    costs.layers.push_back(run);
  }
  // All times are whole numbers, so all cuts have the same ticks.
  costs.link = {.latency = static_cast<double>(random.number(0, 2)), .bandwidth = 1};
  if (random.chance(30)) costs.links[{0, ranks - 1}] = {.latency = 3};
  if (differ && random.chance(60)) {
    for (int rank = 0; rank < ranks; ++rank) costs.rank_scale.push_back(random.number(1, 2));
  }
  std::vector<double> limits;
  for (int rank = 0; rank < ranks; ++rank) limits.push_back(random.number(10, 60));
  if (random.chance(40)) request.memory.bytes = PerRank(limits);
  if (!request.memory.bytes && random.chance(50)) request.memory.activations = random.number(1, 3);
  request.evaluations = 100'000;
  return request;
}

TEST(CutsTest, TheSearchFindsTheOptimumOfAllCutsAndOrders) {
  Random random(1);
  int solved = 0, met = 0, uneven = 0, exact = 0;
  for (int instance = 0; solved < 500; ++instance) {
    SCOPED_TRACE("instance " + std::to_string(instance));
    const SearchRequest request = random_request(random);
    const int layers = num_layers(request.costs), stages = request.placement.num_stages();
    constexpr double kNone = std::numeric_limits<double>::infinity();
    double optimum = kNone, least_bound = kNone;
    // Where it must say all that the bounds of one rank do: not where some cut has memory for whole
    // backwards only, and not where the least speed or transfer counts for what is not known.
    bool is_exact = request.costs.rank_scale.empty();
    for (const LayerRun& run : request.costs.layers)
      is_exact &= run[&Costs::output_bytes] == 2 && run[&Costs::input_gradient_bytes] == 1;
    for (const Cut& cut : all_cuts(layers, stages)) {
      const Problem problem = problem_of(with_cut(request, cut));
      if (shortage_of(problem)) continue;
      is_exact &= problem.splits_backward;
      // Where I adds memory, all backwards may be whole.
      SearchRequest merged = with_cut(request, cut);
      merged.splits_backward = false;
      for (const Problem& one : {problem, problem_of(merged)}) {
        if (const auto cost = tests::optimum_of(one)) optimum = std::min(optimum, one.time(*cost));
      }
      // What docs/bounds.md says of one rank, alone or around the first one.
      Ticks bound = 0;
      for (const Bound& one : lower_bounds(problem)) {
        if (one.name != "first_backwards" && (one.other < 0 || one.rank == 0))
          bound = std::max(bound, one.value);
      }
      least_bound = std::min(least_bound, problem.time(bound));
    }
    if (optimum == kNone) continue;
    ++solved;
    const std::optional<CutResult> found = search_cuts(request);
    ASSERT_TRUE(found);
    EXPECT_NEAR(found->result.cost, optimum, 1e-9 * optimum)
        << ::testing::PrintToString(found->cut);
    EXPECT_EQ(std::accumulate(found->cut.begin(), found->cut.end(), 0), layers);
    EXPECT_EQ(found->result.order.cut, found->cut);
    const double bound = cut_bound(request, 10 * optimum).value;
    EXPECT_LE(bound, optimum);
    EXPECT_GE(bound, is_exact ? least_bound * (1 - 1e-8) : 0);
    exact += is_exact;
    EXPECT_LE(found->result.problem.time(found->result.bound.value), optimum * (1 + 1e-9));
    met += bound >= optimum * (1 - 1e-8);
    uneven += found->cut != even_cut(layers, stages);
  }
  EXPECT_GT(met, 150) << "the bound says little";
  EXPECT_GT(uneven, 150) << "the cases are too even";
  EXPECT_GT(exact, 100);
  RecordProperty("met", met);
  RecordProperty("uneven", uneven);
}

// Against all cuts.
TEST(CutsTest, LeastWorkOfTheBusiestRank) {
  Random random(3);
  for (int instance = 0; instance < 60; ++instance) {
    const ir::Placement placement = instance % 3 == 0   ? ir::Placement::loop(3, 5)
                                    : instance % 3 == 1 ? ir::Placement::v(2, 4)
                                                        : ir::Placement::loop(4, 4);
    Costs costs;
    for (int layer = 0; layer < 7; ++layer)
      costs.layers.emplace_back()[&Costs::forward] = random.number(0, 9);
    const LayerSums work(costs, {&Costs::forward});
    const auto work_of = [&](LayerRange layers, int rank) {
      return (1 + rank % 2) * work.over(layers.first, layers.last);
    };
    double least = std::numeric_limits<double>::infinity();
    for (const Cut& cut : all_cuts(7, placement.num_stages())) {
      std::vector<double> ranks(static_cast<size_t>(placement.num_ranks()), 0);
      const std::vector<LayerRange> ranges = layer_ranges(cut);
      for (int stage = 0; stage < placement.num_stages(); ++stage) {
        const int rank = placement.rank_of(stage);
        ranks[static_cast<size_t>(rank)] += work_of(ranges[static_cast<size_t>(stage)], rank);
      }
      least = std::min(least, std::ranges::max(ranks));
    }
    std::vector<int> bounds(static_cast<size_t>(placement.num_stages()) + 1, -1);
    bounds.front() = 0;
    bounds.back() = 7;
    EXPECT_EQ(LeastWork(placement, 7, work_of, least).from(0, bounds), least);
    if (least == 0) continue;
    EXPECT_EQ(LeastWork(placement, 7, work_of, least / 2).from(0, bounds), LeastWork::kNoCut);
  }
}

// A model with a head that is as much work as several layers.
SearchRequest headed(ir::Placement placement, int layers, int microbatches) {
  SearchRequest request = {.placement = std::move(placement), .num_microbatches = microbatches};
  LayerRun layer;
  layer.count = layers - 1;
  layer[&Costs::activation_bytes] = 8;
  layer[&Costs::weight_input_bytes] = 3;
  LayerRun head = layer;
  head.count = 1;
  for (PerStage Costs::*time : {&Costs::forward, &Costs::backward_input, &Costs::backward_weight})
    head[time] = 2.5;
  request.costs.layers = {layer, head};
  return request;
}

TEST(CutsTest, IsNeverWorseThanTheCutsThatItKnows) {
  for (const auto& placement : {ir::Placement::loop(4, 4), ir::Placement::v(4, 8)}) {
    SearchRequest request = headed(placement, 23, 8);
    request.evaluations = 200'000;
    request.memory.bytes = 2.0 * 4 * 6 * 8;
    const std::optional<CutResult> found = search_cuts(request);
    ASSERT_TRUE(found);
    for (const Cut& cut :
         {even_cut(23, placement.num_stages()), least_maximum_cut(request.costs, placement)}) {
      const SearchRequest fixed = with_cut(request, cut);
      if (shortage_of(problem_of(fixed))) continue;
      EXPECT_LE(found->result.cost, search_schedule(fixed).cost) << ::testing::PrintToString(cut);
    }
    EXPECT_LE(found->result.cost, found->result.problem.time(found->result.bound.value) * 1.1);
    // The plan that names its cut costs the same where it is simulated.
    const CompileResult compiled =
        compile({.source = ir::AnySchedule(found->result.order), .level = ir::Level::kComputeOnly});
    ASSERT_TRUE(compiled.ok());
    const SimulateResult simulated =
        simulate(compiled, {.costs = request.costs, .memory = request.memory});
    ASSERT_TRUE(simulated.ok());
    EXPECT_NEAR(simulated.simulation->report.cost, found->result.cost, 1e-9);
  }
}

// Where rank 1 has little memory, it gets few layers.
TEST(CutsTest, KeepsToTheMemoryOfEachRank) {
  SearchRequest request = headed(ir::Placement::loop(3, 3), 12, 4);
  request.evaluations = 100'000;
  request.memory.bytes = PerRank({200.0, 17.0, 200.0});
  const std::optional<CutResult> found = search_cuts(request);
  ASSERT_TRUE(found);
  EXPECT_LE(found->cut[1], 2);
  EXPECT_LE(found->result.peak_memory[1], found->result.problem.memory_limits[1]);
  request.memory.bytes = PerRank({24.0, 24.0, 24.0});  // nine of twelve layers
  EXPECT_FALSE(search_cuts(request));
}

// Also where the even cut is the best and a probe has found its optimum.
TEST(CutsTest, ChoosesByRobustness) {
  SearchRequest request = headed(ir::Placement::loop(2, 2), 9, 4);
  request.costs.layers.pop_back();
  request.evaluations = 100'000;
  request.noise = 0.05;
  const std::optional<CutResult> found = search_cuts(request);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->cut, (Cut{4, 4}));
  EXPECT_EQ(found->result.gap(), 0);
  EXPECT_TRUE(found->result.robustness);
}

TEST(CutsTest, PlacementsWithSeveralStagesPerRank) {
  const SearchRequest v = headed(ir::Placement::v(4, 8), 20, 16);
  // All work on four ranks, and no rank can have less than its share.
  const double work = 16 * (19 * 3 + 7.5) / 4;
  EXPECT_GE(cut_bound(v, 1e9).value, work * (1 - 1e-9));
  SearchRequest loop = headed(ir::Placement::loop(4, 8), 20, 16);
  EXPECT_GE(cut_bound(loop, 1e9).value, work * (1 - 1e-9));
  EXPECT_LE(cut_bound(loop, 100).value, 100);  // a limit is the most that it says
  // With six layers per rank, and three beside the head, which is 18 and 16.5 of work, two of 95
  // are left over. One has seven.
  const SearchRequest deep = headed(ir::Placement::v(16, 32), 96, 64);
  EXPECT_GE(cut_bound(deep, 1e9).value, 64 * 7 * 3 * (1 - 1e-8));
  std::vector<PlacementOption> options;
  for (const char* name : {"loop", "v"}) options.push_back({name, named_placement(name, 2, 4), 1});
  SearchRequest request = headed(options[0].placement, 9, 4);
  request.evaluations = 50'000;
  const std::vector<FrontPoint> points = search_cut_front(request, options);
  ASSERT_EQ(points.size(), 2U);
  for (const FrontPoint& point : points)
    EXPECT_EQ(point.is_best,
              point.result.cost <= std::min(points[0].result.cost, points[1].result.cost));
  // With 8/8 to 2/8 of a memory that differs by rank.
  request.memory.bytes = PerRank({300.0, 400.0});
  const std::vector<FrontPoint> limited = search_cut_front(request, options);
  ASSERT_GT(limited.size(), 8U);
  double cost = 0;
  for (const FrontPoint& point : limited) {
    EXPECT_NEAR(point.memory.bytes->at(1), 4.0 / 3 * point.memory.bytes->at(0), 1e-9);
    for (size_t rank = 0; rank < 2; ++rank)
      EXPECT_LE(point.result.peak_memory[rank], point.result.problem.memory_limits[rank]);
    if (point.option.name == "loop" && point.is_best) {
      EXPECT_GT(point.result.cost, cost) << "less memory, and no less cost";
      cost = point.result.cost;
    }
  }
  EXPECT_EQ(limited.front().memory.bytes->at(0), 300);
  EXPECT_LE(limited.back().memory.bytes->at(0), 300 * 5.0 / 8);
}

}  // namespace
}  // namespace pipewright::schedule::search
