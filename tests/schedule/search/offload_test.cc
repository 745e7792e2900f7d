// Stages that offload: against every order and every choice of stages of small problems, by the
// tests' own simulator of copies; and what a plan says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/search/saving.h"
#include "pipewright/schedule/search/search.h"
#include "tests/schedule/bounds/plain_orders.h"
#include "tests/schedule/offload_simulator.h"

namespace pipewright::schedule::search {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The order with these rows, whose letters are F, I (or B) and W.
ir::ComputeOrder order_with(const SearchRequest& request, bool splits,
                            const tests::Orders& orders) {
  using enum ir::ActionKind;
  ir::ComputeOrder order;
  order.placement = request.placement;
  order.num_microbatches = request.num_microbatches;
  for (const std::vector<tests::Letter>& letters : orders) {
    ir::Row& row = order.rows.emplace_back();
    std::vector<std::vector<int>> count(3, std::vector<int>(16));
    for (const auto [stage, kind] : letters) {
      const ir::ActionKind kinds[] = {kForward, splits ? kBackwardInput : kBackward,
                                      kBackwardWeight};
      if (kind == 2 && !splits) continue;
      row.emplace_back(ir::ActionPart(
          kinds[kind], stage, count[static_cast<size_t>(kind)][static_cast<size_t>(stage)]++));
    }
  }
  return order;
}

// The least cost of all orders that fit in memory, if exactly these stages offload; infinity if
// none does. With whole backwards if not `splits`.
double optimum_of(const SearchRequest& request, const std::vector<int>& offload, bool splits) {
  const int ranks = request.placement.num_ranks();
  const Costs costs = offloading(request.costs, offload, request.placement.num_stages());
  const Problem anything =
      make_problem(request.placement, request.num_microbatches, request.costs, {}, splits);
  std::vector<std::vector<std::vector<tests::Letter>>> rows;
  for (int rank = 0; rank < ranks; ++rank) {
    rows.push_back(tests::all_rows(anything, rank));
    // There a W is nothing: of the orders that differ in its place only, one is enough.
    if (splits) continue;
    std::erase_if(rows.back(), [](const std::vector<tests::Letter>& row) {
      for (size_t k = 0; k < row.size(); ++k) {
        if (row[k].kind == 1 && (k + 1 == row.size() || row[k + 1].kind != 2)) return true;
      }
      return false;
    });
  }
  double best = kNever;
  tests::Orders orders(rows.size());
  const auto choose = [&](const auto& self, size_t rank) -> void {
    if (rank < rows.size()) {
      for (const auto& row : rows[rank]) {
        orders[rank] = row;
        self(self, rank + 1);
      }
      return;
    }
    const tests::OffloadRun run = tests::run_of(order_with(request, splits, orders), costs);
    if (std::ranges::all_of(run.peaks,
                            [&](double peak) { return peak <= request.memory.bytes->at(0); }))
      best = std::min(best, run.cost);
  };
  choose(choose, 0);
  return best;
}

// Of every choice of stages, that of none first.
std::vector<double> optima_of_choices(const SearchRequest& request) {
  const int stages = request.placement.num_stages();
  std::vector<double> optima;
  for (unsigned choice = 0; choice < 1u << static_cast<unsigned>(stages); ++choice) {
    std::vector<int> offload;
    for (int stage = 0; stage < stages; ++stage) {
      if ((choice >> static_cast<unsigned>(stage) & 1) != 0) offload.push_back(stage);
    }
    optima.push_back(
        std::min(optimum_of(request, offload, true), optimum_of(request, offload, false)));
  }
  return optima;
}

SearchRequest random_request(std::mt19937* random) {
  const auto number = [&](int least, int most) {
    return least + static_cast<int>((*random)() % static_cast<unsigned>(most - least + 1));
  };
  // Far apart, so that two sums are equal only if they must be: of what happens at one time, the
  // tests' simulator may count other things first.
  const auto time = [&](int most) { return number(1, 1'000'003 * most / 9); };
  SearchRequest request;
  request.placement =
      number(0, 5) == 0 ? ir::Placement::custom(2, {0, 1, 0}) : ir::Placement::loop(2, 2);
  const int stages = request.placement.num_stages();
  request.num_microbatches = stages == 2 ? 3 : 2;
  std::vector<double> forward, input, weight, activation, offloaded, held, out, back;
  double least = 0;
  for (int stage = 0; stage < stages; ++stage) {
    forward.push_back(time(9));
    input.push_back(time(9));
    weight.push_back(time(9));
    activation.push_back(number(4, 9));
    offloaded.push_back(
        number(static_cast<int>(activation.back() / 2), static_cast<int>(activation.back())));
    held.push_back(number(0, static_cast<int>(activation.back() / 2)));
    out.push_back(time(2));
    back.push_back(time(2));
    least = std::max(least, activation.back());
  }
  request.costs = {.forward = PerStage(forward),
                   .backward_input = PerStage(input),
                   .backward_weight = PerStage(weight),
                   .offload = PerStage(out),
                   .reload = PerStage(back),
                   .link = {.latency = static_cast<double>(time(4))},
                   .activation_bytes = PerStage(activation),
                   .offload_bytes = PerStage(offloaded),
                   .weight_input_bytes = PerStage(held)};
  request.memory.bytes = number(static_cast<int>(least), static_cast<int>(2.5 * least));
  request.may_offload = true;
  request.evaluations = 1'000'000;
  return request;
}

// The optimum in 99 of 100 problems, and no bound above it.
TEST(Offload, ReachesTheOptimumOfSmallProblems) {
  std::mt19937 random(1);
  int solved = 0, reached = 0, offloads = 0, only_offloading = 0;
  for (int instance = 0; instance < 100; ++instance) {
    const SearchRequest request = random_request(&random);
    const std::vector<double> optima = optima_of_choices(request);
    const double optimum = std::ranges::min(optima), without = optima.front();
    if (shortage_of(problem_of(request))) {
      EXPECT_EQ(optimum, kNever) << instance;
      continue;
    }
    if (optimum == kNever) {
      EXPECT_THROW(search_schedule(request), NothingFits) << instance;
      continue;
    }
    const SearchResult found = search_schedule(request);
    EXPECT_LE(found.problem.time(found.bound.value), optimum + 1e-9) << instance;
    EXPECT_GE(found.cost, optimum - 1e-9) << instance;
    reached += found.cost <= optimum + 1e-9;
    ++solved;
    offloads += optimum < without;
    only_offloading += without == kNever;
  }
  EXPECT_GT(solved, 80);
  EXPECT_GE(reached, solved * 99 / 100);
  EXPECT_GT(offloads, 8);
  EXPECT_GT(only_offloading, 2);
}

// The bound for all choices is the least of the bounds of the single ones.
TEST(Offload, BoundsEveryChoice) {
  std::mt19937 random(2);
  int bounded = 0;
  for (int instance = 0; instance < 200; ++instance) {
    SearchRequest request = random_request(&random);
    const int stages = request.placement.num_stages();
    request.costs.checkpoint_bytes = static_cast<double>(random() % 4);
    const auto problem = make_saving_problem(request.placement, request.num_microbatches,
                                             request.costs, request.memory);
    const bool recomputes = instance % 2 == 0;
    const SavingChoices choices =
        saving_choices(problem, problem, {.recompute = recomputes, .offload = true});
    Ticks least = kNoLimit;
    int number = 1;
    for (int stage = 0; stage < stages; ++stage) number *= 3;
    for (int choice = 0; choice < number; ++choice) {
      Saving saving;
      int rest = choice;
      for (int stage = 0; stage < stages; ++stage, rest /= 3) {
        if (rest % 3 == 1) saving.offload.push_back(stage);
        if (rest % 3 == 2) saving.recompute.push_back(stage);
      }
      if (!saving.recompute.empty() && !recomputes) continue;
      const Problem one = problem.with(saving);
      if (!shortage_of(one)) least = std::min(least, lower_bound(one).value);
    }
    ASSERT_EQ(choices.promising.empty(), least == kNoLimit);
    if (choices.promising.empty()) continue;
    EXPECT_EQ(choices.bound.value, least) << instance;
    EXPECT_EQ(choices.promising.front().bound.value, least) << instance;
    ++bounded;
  }
  EXPECT_GT(bounded, 150);
}

SearchRequest deep_request() {
  SearchRequest request;
  request.placement = ir::Placement::loop(4, 8);
  request.num_microbatches = 8;
  request.costs = {.forward = 10,
                   .backward_input = 11,
                   .backward_weight = 9,
                   .offload = 9,
                   .reload = 9,
                   .link = {.latency = 1},
                   .activation_bytes = 100,
                   .checkpoint_bytes = 10,
                   .offload_bytes = 80,
                   .weight_input_bytes = 40};
  request.evaluations = 500'000;
  return request;
}

// With offload, recomputation, both and neither.
TEST(Offload, IsNeverWorseThanWithout) {
  int better = 0, only = 0, best_with_both = 0;
  for (const double bytes :
       {115.0, 190.0, 210.0, 230.0, 250.0, 300.0, 400.0, 500.0, 700.0, 2000.0}) {
    SearchRequest request = deep_request();
    request.memory.bytes = bytes;
    const auto cost_with = [&](bool recompute, bool offload) {
      request.may_recompute = recompute;
      request.may_offload = offload;
      if (shortage_of(problem_of(request))) return kNever;
      try {
        const SearchResult found = search_schedule(request);
        EXPECT_LE(found.problem.time(found.bound.value), found.cost);
        return found.cost;
      } catch (const NothingFits&) {
        return kNever;
      }
    };
    const double neither = cost_with(false, false), offload = cost_with(false, true);
    const double recompute = cost_with(true, false), both = cost_with(true, true);
    EXPECT_LE(offload, neither) << bytes;
    EXPECT_LE(both, recompute) << bytes;
    better += offload < neither && offload < recompute;
    only += offload < kNever && neither == kNever;
    best_with_both += both < std::min(offload, recompute);
  }
  EXPECT_GT(better, 3);
  EXPECT_GT(only, 0);
  EXPECT_GT(best_with_both, 0) << "some stages recompute and others offload";
}

// The order names its stages; the simulator finds the same cost, and bytes within the limit.
TEST(Offload, OrdersSimulateToTheCostAndTheBytes) {
  for (const bool recompute : {false, true}) {
    for (const double bytes : {300.0, 400.0, 600.0}) {
      SearchRequest request = deep_request();
      request.memory.bytes = bytes;
      request.may_recompute = recompute;
      request.may_offload = true;
      request.noise = 1e-9;
      const SearchResult found = search_schedule(request);
      EXPECT_NEAR(found.robustness->mean, 0, 1e-6) << "without noise it takes its makespan";
      const CompileResult order =
          compile({.source = ir::AnySchedule(found.order), .level = ir::Level::kComputeOnly});
      ASSERT_TRUE(order.ok());
      const SimulateResult simulated =
          simulate(order, {.costs = request.costs, .memory = request.memory});
      ASSERT_TRUE(simulated.ok());
      const Report& report = simulated.simulation->report;
      EXPECT_NEAR(report.cost, found.cost, 1e-9 * found.cost);
      EXPECT_GE(simulated.simulation->bound->value, found.problem.time(found.bound.value) - 1e-9);
      for (size_t rank = 0; rank < report.ranks.size(); ++rank) {
        EXPECT_LE(report.ranks[rank].peak_bytes.amount, bytes);
        EXPECT_EQ(found.problem.size(found.peak_memory[rank]),
                  report.ranks[rank].peak_bytes.amount);
      }
    }
  }
}

}  // namespace
}  // namespace pipewright::schedule::search
