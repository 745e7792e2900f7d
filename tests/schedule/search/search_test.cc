// The front door: never worse than the catalogue, valid plans, memory, robustness, several
// placements.
#include "pipewright/schedule/search/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/search/catalogue.h"
#include "pipewright/schedule/search/front.h"
#include "pipewright/schedule/search/replay.h"
#include "pipewright/schedule/search/words.h"

namespace pipewright::schedule::search {
namespace {

// With almost no budget, and with some.
TEST(Search, IsNeverWorseThanTheCatalogue) {
  const Costs all_costs[] = {
      {},
      {.forward = 18.522,
       .backward_input = 18.086,
       .backward_weight = 9.337,
       .link = {.latency = 0.601}},
      {.forward = 10,
       .backward_input = 11,
       .backward_weight = 7,
       .rank_scale = {1, 1.2, 0.9, 1},
       .link = {.latency = 3}},
      {.forward = 4,
       .backward_input = 9,
       .backward_weight = 1,
       .microbatch_scale = {1, 2, 1, 0.5, 1, 3, 1, 1}},
  };
  int compared = 0;
  for (const Costs& costs : all_costs) {
    for (const ir::Placement& placement :
         {ir::Placement::loop(4, 4), ir::Placement::loop(4, 8), ir::Placement::v(4, 8)}) {
      for (const double activations : {1.0, 2.0, 3.0, 4.0, 5.5, 8.0, 50.0}) {
        for (const bool splits : {true, false}) {
          SearchRequest request = {.placement = placement,
                                   .num_microbatches = 8,
                                   .costs = costs,
                                   .memory = {.activations = activations},
                                   .splits_backward = splits};
          request.evaluations = compared % 2 == 0 ? 1 : 20'000;
          const Problem problem = problem_of(request);
          const SearchResult result = search_schedule(request);
          EXPECT_GE(result.cost_in_ticks, result.bound.value);
          Replay replay(problem);
          for (const Candidate& named : catalogue(problem)) {
            if (!fits_memory(problem, named.words)) continue;
            ASSERT_TRUE(replay.run(named.words)) << named.name;
            EXPECT_LE(result.cost_in_ticks, replay.cost()) << named.name;
            ++compared;
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 300);
}

// V-Adaptive planned for less memory may cost less: here for 7 activations per rank, of 8. The
// smallest budget leaves only the catalogue.
TEST(Search, IsNeverWorseThanAPlanForLessMemory) {
  const Costs costs = {
      .forward = 3.55, .backward_input = 10.76, .backward_weight = 15.81, .link = {.latency = 3}};
  const SearchResult found = search_schedule({.placement = ir::Placement::v(8, 16),
                                              .num_microbatches = 8,
                                              .costs = costs,
                                              .memory = {.activations = 8},
                                              .evaluations = 1});
  std::vector<double> named;
  for (int live = 8; live <= 16; ++live) {
    const CompileResult compiled =
        compile({.source = "V-Adaptive",
                 .shape = {.ranks = 8, .stages = 16, .microbatches = 8, .memory = live / 2.0},
                 .costs = costs,
                 .level = ir::Level::kComputeOnly});
    ASSERT_TRUE(compiled.ok());
    named.push_back(simulate(compiled, {.costs = costs}).simulation->report.cost);
    EXPECT_LE(found.cost, named.back() * (1 + 1e-9)) << live << " live activations";
  }
  EXPECT_LT(named[14 - 8], 0.98 * named[16 - 8]) << "less memory is not better here";
}

// How many plans the catalogue has for V-Adaptive.
int64_t plans_of(int ranks, int microbatches, const Costs& costs, double activations) {
  return std::ranges::count(catalogue(make_problem(ir::Placement::v(ranks, 2 * ranks), microbatches,
                                                   costs, {.activations = activations})),
                            "V-Adaptive", &Candidate::name);
}

// Beside the one for its default memory.
TEST(Search, PlansForLessMemoryWhereThatMayBeBetter) {
  const Costs uneven = {.forward = 3.55, .backward_input = 10.76, .backward_weight = 15.81};
  EXPECT_EQ(plans_of(8, 24, {}, 8), 1 + 1) << "ZBV is optimal: less memory cannot be better";
  EXPECT_EQ(plans_of(8, 24, uneven, 4), 1 + 2) << "the least, and a plan for more does not fit";
  EXPECT_GT(plans_of(8, 24, uneven, 8), 1 + 1);
  EXPECT_EQ(plans_of(32, 2, uneven, 32), 1 + 256 / 32) << "only as many as take some seconds";
}

// A search with almost no budget keeps an order that a longer one found, where it fits.
TEST(Search, StartsFromKnownOrders) {
  SearchRequest request = {
      .placement = ir::Placement::v(4, 8),
      .num_microbatches = 12,
      .costs = {.forward = 3.55, .backward_input = 10.76, .backward_weight = 15.81},
      .memory = {.activations = 4},
      .memory_plans = false};
  request.evaluations = 1'000'000;
  const SearchResult longer = search_schedule(request);
  request.evaluations = 1;
  EXPECT_GT(search_schedule(request).cost, longer.cost);
  request.known = {longer.order};
  EXPECT_EQ(search_schedule(request).cost, longer.cost);
  request.memory = {.activations = 2};  // which is too little for it
  EXPECT_GT(search_schedule(request).cost, longer.cost);
}

TEST(Search, LeavesOutMemoryPlans) {
  const Problem problem =
      make_problem(ir::Placement::v(4, 8), 12, {.forward = 2}, {.activations = 4});
  std::vector<std::string> all, quick;
  for (const Candidate& one : catalogue(problem)) {
    if (one.name != "V-Adaptive") all.push_back(one.name);
  }
  for (const Candidate& one : catalogue(problem, nullptr, /*memory_plans=*/false))
    quick.push_back(one.name);
  EXPECT_LT(all.size(), catalogue(problem).size());
  EXPECT_EQ(quick, all);
}

// The order is valid, and the simulator computes the same figures from it.
TEST(Search, FindsValidOrdersWithTheCostItSays) {
  const Costs costs = {.forward = 11.347,
                       .backward_input = 11.248,
                       .backward_weight = 8.132,
                       .link = {.latency = 0.377}};
  for (const bool splits : {true, false}) {
    for (const ir::Placement& placement : {ir::Placement::loop(4, 4), ir::Placement::loop(3, 7),
                                           ir::Placement::v(4, 8), ir::Placement::v(2, 8)}) {
      const SearchResult result = search_schedule({.placement = placement,
                                                   .num_microbatches = 7,
                                                   .costs = costs,
                                                   .memory = {.activations = 2.5},
                                                   .splits_backward = splits,
                                                   .evaluations = 200'000});
      const CompileResult compiled = compile({.source = ir::AnySchedule(result.order)});
      ASSERT_TRUE(compiled.ok());
      const CompileResult order =
          compile({.source = ir::AnySchedule(result.order), .level = ir::Level::kComputeOnly});
      const SimulateResult simulated = simulate(order, {.costs = costs});
      ASSERT_TRUE(simulated.ok());
      const Report& report = simulated.simulation->report;
      EXPECT_NEAR(report.cost, result.cost, 1e-9 * result.cost);
      EXPECT_NEAR(report.makespan, result.makespan, 1e-9 * result.makespan);
      EXPECT_NEAR(report.bubble_rate, result.bubble_rate, 1e-9);
    }
  }
}

// Several named schedules have the least cost; GPipe keeps all microbatches alive.
TEST(Search, PrefersTheNamedScheduleThatNeedsLeastMemory) {
  const SearchResult result = search_schedule({.placement = ir::Placement::loop(4, 4),
                                               .num_microbatches = 12,
                                               .costs = {},
                                               .splits_backward = false,
                                               .evaluations = 100'000});
  EXPECT_EQ(result.found_by, "1F1B");
}

// Where I adds memory, whole backwards fit where split ones do not, or leave room for more Fs.
TEST(Search, RunsBackwardsWholeWhereTheyNeedLessMemory) {
  SearchRequest request = {.placement = ir::Placement::loop(2, 2),
                           .num_microbatches = 12,
                           .costs = {.forward = PerStage({1, 4}),
                                     .backward_input = PerStage({1, 4}),
                                     .backward_weight = PerStage({10, 0}),
                                     .activation_bytes = 10,
                                     .weight_input_bytes = 30},
                           .evaluations = 100'000};
  // At 3 activations, a rank that keeps a W's memory has no room for anything else.
  const auto cost_with = [&](double activations) {
    request.memory.activations = activations;
    const SearchResult found = search_schedule(request);
    EXPECT_GE(found.cost_in_ticks, found.bound.value);
    EXPECT_EQ(found.order, order_of(found.problem, words_of(found.problem, found.order), "search"));
    return std::pair(found.cost, found.problem.splits_backward);
  };
  request.splits_backward = false;
  const auto whole = cost_with(3);
  request.splits_backward = true;
  EXPECT_FALSE(cost_with(2).second);  // no I fits
  EXPECT_EQ(cost_with(3), whole);
  EXPECT_TRUE(cost_with(100).second);
  EXPECT_LT(cost_with(100).first, whole.first);
  request.memory.activations = 0.5;
  EXPECT_EQ(shortage_of(problem_of(request))->least, 1);  // in activations: of a whole backward
}

TEST(Search, NamesTheRankThatIsShortOfMemory) {
  const Costs costs = {.activation_bytes = 100, .weight_input_bytes = 50, .parameter_bytes = 1000};
  SearchRequest request = {.placement = ir::Placement::v(2, 4),
                           .num_microbatches = 4,
                           .costs = costs,
                           .memory = {.bytes = 2199}};
  const auto shortage = shortage_of(problem_of(request));
  ASSERT_TRUE(shortage);
  EXPECT_EQ(shortage->rank, 0);
  request.memory.bytes = 2200;
  EXPECT_FALSE(shortage_of(problem_of(request)));
}

TEST(Search, NamesARankWhoseParametersAreVeryLarge) {
  const SearchRequest request = {.placement = ir::Placement::loop(2, 20),
                                 .num_microbatches = 2,
                                 .costs = {.activation_bytes = 1, .parameter_bytes = 1e18},
                                 .memory = {.bytes = 100}};
  const auto shortage = shortage_of(problem_of(request));
  ASSERT_TRUE(shortage);
  EXPECT_LT(shortage->limit, 0);
}

// Under noise, a schedule with slack keeps its lead; the figures are relative and sensible.
TEST(Search, ReportsRobustness) {
  SearchRequest request = {.placement = ir::Placement::v(2, 4),
                           .num_microbatches = 6,
                           .costs = {.link = {.latency = 0.5}},
                           .evaluations = 100'000};
  EXPECT_FALSE(search_schedule(request).robustness);
  request.noise = 0.1;
  const SearchResult result = search_schedule(request);
  ASSERT_TRUE(result.robustness);
  EXPECT_GT(result.robustness->percentile_95, result.robustness->mean);
  EXPECT_GT(result.robustness->slow_rank, 0.01);
  EXPECT_LE(result.robustness->slow_rank, 0.05 + 1e-9);
  EXPECT_GE(result.robustness->slow_links, 0);
}

// The mean and the 95th percentile may choose different schedules, each the better one by its own
// measure.
TEST(Search, ChoosesByMeanOrPercentile) {
  int different = 0;
  for (const double transfer : {0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3, 1.5}) {
    SearchRequest request = {.placement = ir::Placement::v(3, 6),
                             .num_microbatches = 6,
                             .costs = {.link = {.latency = transfer}},
                             .memory = {.activations = 2},
                             .evaluations = 50'000,
                             .noise = 0.2};
    const SearchResult mean = search_schedule(request);
    request.robust_by = RobustBy::kPercentile95;
    const SearchResult tail = search_schedule(request);
    EXPECT_LE(mean.makespan * (1 + mean.robustness->mean),
              tail.makespan * (1 + tail.robustness->mean));
    EXPECT_LE(tail.makespan * (1 + tail.robustness->percentile_95),
              mean.makespan * (1 + mean.robustness->percentile_95));
    different += mean.order != tail.order ? 1 : 0;
  }
  EXPECT_GT(different, 0);
}

// With many microbatches, a search with fewer comes first, and reports too.
TEST(Search, ReportsProgressOfBothPhases) {
  std::vector<int> microbatches;
  SearchRequest request = {.placement = ir::Placement::v(2, 4),
                           .num_microbatches = 40,
                           .costs = {.link = {.latency = 0.5}},
                           .memory = {.activations = 1.5},
                           .evaluations = 100'000};
  request.on_progress = [&](const SearchProgress& progress) {
    microbatches.push_back(progress.num_microbatches);
    EXPECT_GE(progress.cost, progress.bound);
    EXPECT_GE(progress.bound, 3.0 * 2 * progress.num_microbatches);
  };
  search_schedule(request);
  ASSERT_FALSE(microbatches.empty());
  EXPECT_EQ(microbatches.front(), 8);
  EXPECT_EQ(microbatches.back(), 40);
}

// An interrupt while fewer microbatches are searched: what was found for them is repeated.
TEST(Search, KeepsWhatItFoundForFewerMicrobatchesWhenCancelled) {
  std::atomic<bool> cancel = false;
  SearchRequest request = {
      .placement = ir::Placement::v(4, 8),
      .num_microbatches = 32,
      .costs = {.forward = 9, .backward_input = 9, .backward_weight = 5, .link = {.latency = 0.6}},
      .memory = {.activations = 2},
      .evaluations = 10'000'000};
  int rounds = 0, microbatches = 0;
  double brief_cost = 0;
  request.on_progress = [&](const SearchProgress& progress) {
    if (cancel || ++rounds < 2) return;
    brief_cost = progress.cost;
    microbatches = progress.num_microbatches;
    cancel = true;
  };
  request.cancel = &cancel;
  const SearchResult result = search_schedule(request);
  EXPECT_TRUE(result.is_cancelled);
  EXPECT_EQ(microbatches, 16);
  EXPECT_EQ(result.found_by, "search");
  // Its repetition costs about as much per microbatch as the rest.
  EXPECT_LE(result.cost, brief_cost * 32 / microbatches);
}

// An interrupt before anything was tried: one schedule of the catalogue, no noise, and a result
// that is valid.
TEST(Search, StopsAtOnceWhenCancelled) {
  const std::atomic<bool> cancel = true;
  SearchRequest request = {.placement = ir::Placement::loop(4, 4),
                           .num_microbatches = 50,
                           .memory = {.activations = 1},
                           .noise = 0.1};
  request.cancel = &cancel;
  EXPECT_EQ(catalogue(problem_of(request), &cancel).size(), 1u);
  EXPECT_GT(catalogue(problem_of(request)).size(), 5u);
  const SearchResult result = search_schedule(request);
  EXPECT_TRUE(result.is_cancelled);
  EXPECT_FALSE(result.robustness);
  EXPECT_EQ(result.evaluations, 0);
  EXPECT_TRUE(compile({.source = ir::AnySchedule(result.order)}).ok());
}

TEST(Search, NoStageOffloadsUnlessItMay) {
  SearchRequest request = {.placement = ir::Placement::loop(2, 2), .num_microbatches = 4};
  const SearchResult plain = search_schedule(request);
  request.costs.offload_bytes = PerStage({0, 60});
  request.costs.offload = request.costs.reload = 5;
  const SearchResult result = search_schedule(request);
  EXPECT_EQ(result.cost, plain.cost);
  EXPECT_EQ(result.bound.value, plain.bound.value);
  EXPECT_TRUE(result.order.offload.empty());
}

TEST(Front, CutsStages) {
  Costs costs = {.forward = PerStage({2, 4}),
                 .backward_input = 6,
                 .output_bytes = 10,
                 .activation_bytes = PerStage({8, 16}),
                 .parameter_bytes = 100};
  const Costs cut = cut_stages(costs, 2, 2);
  EXPECT_EQ(cut.forward, PerStage({1, 1, 2, 2}));
  EXPECT_EQ(cut.backward_input, PerStage(3));
  EXPECT_EQ(cut.output_bytes, PerStage(10));
  EXPECT_EQ(cut.activation_bytes, PerStage({4, 4, 8, 8}));
  EXPECT_EQ(cut.parameter_bytes, PerStage(50));
}

TEST(Front, SearchesEveryPlacementAndAmount) {
  const SearchRequest request = {
      .placement = {}, .num_microbatches = 6, .memory = {.activations = 4}, .evaluations = 500'000};
  const auto options = placement_options(2, 2);
  ASSERT_EQ(options.size(), 4u);
  const std::vector<FrontPoint> points = search_front(request, 2, options);
  EXPECT_EQ(points.size(), 4u * 7u);
  for (const FrontPoint& point : points) {
    // Work is the same for every placement.
    EXPECT_GE(point.result.cost, 6 * 3);
    bool is_beaten = false;
    for (const FrontPoint& other : points)
      is_beaten =
          is_beaten || (other.memory.activations->at(0) <= point.memory.activations->at(0) &&
                        other.result.cost < point.result.cost);
    if (is_beaten) {
      EXPECT_FALSE(point.is_best);
    }
  }
}

}  // namespace
}  // namespace pipewright::schedule::search
