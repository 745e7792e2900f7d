// Stages that recompute: against every order and every choice of stages of small problems, with
// times and memory counted here; and what a plan says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/search/saving.h"
#include "pipewright/schedule/search/search.h"

namespace pipewright::schedule::search {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// One order of a rank: (stage, kind), kind 0 for F, 1 for I (or B), 2 for W.
using Row = std::vector<std::pair<int, int>>;

// All schedules of a problem with at most some actions, for one choice of stages that recompute.
struct Enumeration {
  const SearchRequest& request;
  std::vector<bool> recomputes;
  bool splits;

  double duration(int stage, int kind) const {
    const Costs& costs = request.costs;
    const double weight = costs.backward_weight.at(stage);
    if (kind == 0) return costs.forward.at(stage);
    if (kind == 2) return weight;
    return costs.backward_input.at(stage) + (splits ? 0 : weight) + recomputation(stage);
  }
  double recomputation(int stage) const {
    return recomputes[static_cast<size_t>(stage)]
               ? request.costs.recompute.at(stage) * request.costs.forward.at(stage)
               : 0;
  }

  // What F of a stage keeps.
  double kept(int stage) const {
    const Costs& costs = request.costs;
    return recomputes[static_cast<size_t>(stage)] ? costs.checkpoint_bytes.at(stage)
                                                  : costs.activation_bytes.at(stage);
  }

  std::vector<Row> rows(int rank) const {
    const std::vector<int> stages = request.placement.stages_of(rank);
    const int kinds = splits ? 3 : 2;
    std::vector<Row> all;
    Row row;
    std::vector<std::vector<int>> done(stages.size(), std::vector<int>(3));
    const auto extend = [&](const auto& self, double used) -> void {
      if (row.size() == stages.size() * static_cast<size_t>(kinds * request.num_microbatches))
        return all.push_back(row);
      for (size_t at = 0; at < stages.size(); ++at) {
        for (int kind = 0; kind < kinds; ++kind) {
          const int stage = stages[at];
          const int before = kind == 2                              ? done[at][1]
                             : kind == 1 && at + 1 == stages.size() ? done[at][0]
                             : kind == 1                            ? done[at + 1][1]
                             : at == 0                              ? request.num_microbatches
                                                                    : done[at - 1][0];
          int& count = done[at][static_cast<size_t>(kind)];
          if (count >= before) continue;
          const Costs& costs = request.costs;
          const double held = splits ? costs.weight_input_bytes.at(stage) : 0;
          // In use while the action runs, and after it.
          double during = used, after = used;
          if (kind == 0) during = after = used + kept(stage);
          if (kind == 1) {
            during = used - kept(stage) + costs.activation_bytes.at(stage);
            after = used - kept(stage) + held;
          }
          if (kind == 2) after = used - held;
          if (std::max(during, after) > request.memory.bytes->at(0)) continue;
          ++count;
          row.emplace_back(stage, kind);
          self(self, after);
          row.pop_back();
          --count;
        }
      }
    };
    extend(extend, 0);
    return all;
  }

  // The longest span of any rank; kNever for a deadlock.
  double cost(const std::vector<Row>& rows) const {
    const int stages = request.placement.num_stages();
    const auto index = [&](int stage, int kind) { return static_cast<size_t>(3 * stage + kind); };
    std::vector<std::vector<double>> ends(index(stages, 0));
    std::vector<double> time(rows.size()), start(rows.size(), -1);
    std::vector<size_t> next(rows.size());
    for (bool runs = true; runs;) {
      runs = false;
      for (size_t rank = 0; rank < rows.size(); ++rank) {
        for (; next[rank] < rows[rank].size(); ++next[rank], runs = true) {
          const auto [stage, kind] = rows[rank][next[rank]];
          std::vector<double>& own = ends[index(stage, kind)];
          double ready = 0;
          if (kind != 0 || stage > 0) {
            const bool is_turn = kind == 1 && stage + 1 == stages;
            const int from = kind == 2 || is_turn ? stage : kind == 1 ? stage + 1 : stage - 1;
            const auto& inputs = ends[index(from, kind == 2 ? 1 : is_turn ? 0 : kind)];
            if (inputs.size() <= own.size()) break;
            const bool crosses =
                request.placement.rank_of(from) != request.placement.rank_of(stage);
            ready = inputs[own.size()] + (crosses ? request.costs.link.latency : 0);
          }
          // The recomputation does not wait for the gradient; what follows does.
          const std::vector<double>& scales = request.costs.microbatch_scale;
          const double scale = scales.empty() ? 1 : scales[own.size()];
          const double again = kind == 1 ? scale * recomputation(stage) : 0;
          const double whole = scale * duration(stage, kind);
          const double end = std::max(time[rank] + again, ready) + whole - again;
          if (start[rank] < 0) start[rank] = end - whole;
          own.push_back(time[rank] = end);
        }
      }
    }
    double longest = 0;
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      if (next[rank] < rows[rank].size()) return kNever;
      longest = std::max(longest, time[rank] - start[rank]);
    }
    return longest;
  }

  double optimum() const {
    std::vector<std::vector<Row>> choices;
    for (int rank = 0; rank < request.placement.num_ranks(); ++rank) choices.push_back(rows(rank));
    double best = kNever;
    std::vector<Row> chosen(choices.size());
    const auto choose = [&](const auto& self, size_t rank) -> void {
      if (rank == choices.size()) {
        best = std::min(best, cost(chosen));
        return;
      }
      for (const Row& row : choices[rank]) {
        chosen[rank] = row;
        self(self, rank + 1);
      }
    };
    choose(choose, 0);
    return best;
  }
};

double optimum_of(const SearchRequest& request, const std::vector<bool>& recomputes) {
  return std::min(Enumeration{request, recomputes, true}.optimum(),
                  Enumeration{request, recomputes, false}.optimum());
}

// Of every choice of stages that recompute, the one of none first.
std::vector<double> optima_of_choices(const SearchRequest& request) {
  const int stages = request.placement.num_stages();
  std::vector<double> optima;
  for (unsigned choice = 0; choice < 1u << static_cast<unsigned>(stages); ++choice) {
    std::vector<bool> recomputes;
    for (int stage = 0; stage < stages; ++stage)
      recomputes.push_back((choice >> static_cast<unsigned>(stage) & 1) != 0);
    optima.push_back(optimum_of(request, recomputes));
  }
  return optima;
}

SearchRequest random_request(std::mt19937* random) {
  const auto number = [&](int least, int most) {
    return least + static_cast<int>((*random)() % static_cast<unsigned>(most - least + 1));
  };
  SearchRequest request;
  request.placement =
      number(0, 4) == 0 ? ir::Placement::custom(2, {0, 1, 0}) : ir::Placement::loop(2, 2);
  const int stages = request.placement.num_stages();
  request.num_microbatches = stages == 2 ? number(1, 3) : 2;
  std::vector<double> forward, input, weight, activation, checkpoint, held, again;
  double least = 0, most = 0;
  for (int stage = 0; stage < stages; ++stage) {
    forward.push_back(number(1, 9));
    input.push_back(number(1, 9));
    weight.push_back(number(0, 9));
    activation.push_back(number(2, 9));
    checkpoint.push_back(number(0, static_cast<int>(activation.back())));
    held.push_back(number(0, static_cast<int>(activation.back())));
    again.push_back(number(1, 2) / 2.0);
    least = std::max(least, activation.back());
    most += 1.5 * activation.back();
  }
  request.costs = {.forward = PerStage(forward),
                   .backward_input = PerStage(input),
                   .backward_weight = PerStage(weight),
                   .recompute = PerStage(again),
                   .link = {.latency = static_cast<double>(number(0, 4))},
                   .activation_bytes = PerStage(activation),
                   .checkpoint_bytes = PerStage(checkpoint),
                   .weight_input_bytes = PerStage(held)};
  request.memory.bytes = number(static_cast<int>(least), static_cast<int>(most));
  request.may_recompute = true;
  request.evaluations = 300'000;
  return request;
}

// Never below it, and not above it in 99 of 100 problems.
TEST(Recompute, ReachesTheOptimumOfSmallProblems) {
  std::mt19937 random(1);
  int solved = 0, reached = 0, mixed = 0, only_recomputing = 0;
  for (int instance = 0; instance < 200; ++instance) {
    const SearchRequest request = random_request(&random);
    if (shortage_of(problem_of(request))) continue;
    const int stages = request.placement.num_stages();
    const std::vector<double> optima = optima_of_choices(request);
    const double optimum = std::ranges::min(optima), plain = optima.front();
    const SearchResult found = search_schedule(request);
    EXPECT_LE(found.problem.time(found.bound.value), optimum + 1e-9) << instance;
    EXPECT_GE(found.cost, optimum - 1e-9) << instance;
    reached += found.cost <= optimum + 1e-9;
    ++solved;
    const auto chosen = static_cast<int>(found.order.recompute.size());
    mixed += chosen > 0 && chosen < stages;
    only_recomputing += plain == kNever;
  }
  EXPECT_GT(solved, 150);
  EXPECT_GE(reached, solved * 99 / 100);
  EXPECT_GT(mixed, 30);
  EXPECT_GT(only_recomputing, 5);
}

// Recomputations of up to five forwards, which a longer microbatch starts sooner before its
// gradient.
TEST(Recompute, MicrobatchesOfDifferentSizes) {
  std::mt19937 random(3);
  int solved = 0, reached = 0;
  for (int instance = 0; instance < 200; ++instance) {
    SearchRequest request = random_request(&random);
    for (int k = 0; k < request.num_microbatches; ++k)
      request.costs.microbatch_scale.push_back(1 + static_cast<double>(random() % 3));
    request.costs.recompute.scale(5);
    if (shortage_of(problem_of(request))) continue;
    const double optimum = std::ranges::min(optima_of_choices(request));
    const SearchResult found = search_schedule(request);
    EXPECT_LE(found.problem.time(found.bound.value), optimum + 1e-9) << instance;
    EXPECT_GE(found.cost, optimum - 1e-9) << instance;
    reached += found.cost <= optimum + 1e-9;
    ++solved;
  }
  EXPECT_GT(solved, 150);
  EXPECT_GE(reached, solved * 99 / 100);
}

// The bound for all choices is the least of the bounds of the single ones, and each holds.
TEST(Recompute, BoundsEveryChoice) {
  std::mt19937 random(2);
  int bounded = 0;
  for (int instance = 0; instance < 200; ++instance) {
    const SearchRequest request = random_request(&random);
    const auto problem = make_saving_problem(request.placement, request.num_microbatches,
                                             request.costs, request.memory);
    const SavingChoices choices = saving_choices(problem, problem, {.recompute = true});
    const int stages = request.placement.num_stages();
    Ticks least = kNoLimit;
    for (unsigned choice = 0; choice < 1u << static_cast<unsigned>(stages); ++choice) {
      std::vector<int> chosen;
      std::vector<bool> recomputes(static_cast<size_t>(stages));
      for (int stage = 0; stage < stages; ++stage) {
        if ((choice >> static_cast<unsigned>(stage) & 1) == 0) continue;
        chosen.push_back(stage);
        recomputes[static_cast<size_t>(stage)] = true;
      }
      const Problem one = problem.with({.recompute = chosen});
      if (shortage_of(one)) continue;
      const Ticks bound = lower_bound(one).value;
      least = std::min(least, bound);
      EXPECT_LE(one.time(bound), Enumeration({request, recomputes, true}).optimum() + 1e-9);
    }
    ASSERT_EQ(choices.promising.empty(), least == kNoLimit);
    if (choices.promising.empty()) continue;
    EXPECT_EQ(choices.bound.value, least);
    EXPECT_EQ(choices.promising.front().bound.value, least);
    ++bounded;
  }
  EXPECT_GT(bounded, 150);
}

SearchRequest uneven_request() {
  SearchRequest request;
  request.placement = ir::Placement::loop(4, 4);
  request.num_microbatches = 8;
  request.costs = {.forward = 10,
                   .backward_input = 11,
                   .backward_weight = 9,
                   .link = {.latency = 1},
                   .activation_bytes = 100,
                   .checkpoint_bytes = 10,
                   .weight_input_bytes = 40};
  request.may_recompute = true;
  request.evaluations = 200'000;
  return request;
}

TEST(Recompute, IsNeverWorseThanNoStageAndAllStages) {
  int better = 0, only = 0;
  for (const ir::Placement& placement : {ir::Placement::loop(4, 4), ir::Placement::v(4, 8)}) {
    for (const double bytes : {110.0, 160.0, 210.0, 260.0, 310.0, 400.0, 800.0}) {
      SearchRequest request = uneven_request();
      request.placement = placement;
      request.memory.bytes = bytes;
      if (shortage_of(problem_of(request))) continue;
      const SearchResult free = search_schedule(request);
      EXPECT_LE(free.problem.time(free.bound.value), free.cost);
      request.may_recompute = false;
      std::vector<int> all(static_cast<size_t>(placement.num_stages()));
      for (size_t stage = 0; stage < all.size(); ++stage) all[stage] = static_cast<int>(stage);
      SearchRequest recomputes = request;
      recomputes.costs = recomputing(request.costs, all, placement.num_stages());
      double best = search_schedule(recomputes).cost;
      if (shortage_of(problem_of(request))) {
        ++only;
      } else {
        best = std::min(best, search_schedule(request).cost);
      }
      EXPECT_LE(free.cost, best) << bytes;
      better += free.cost < best;
    }
  }
  EXPECT_GT(better, 3);
  EXPECT_GT(only, 0);
}

// The order names its stages; the simulator, which knows nothing of the search, finds the same
// cost, and bytes within the limit.
TEST(Recompute, OrdersSimulateToTheCostAndTheBytes) {
  for (const double bytes : {110.0, 170.0, 260.0, 800.0}) {
    SearchRequest request = uneven_request();
    request.memory.bytes = bytes;
    request.noise = 1e-9;
    const SearchResult found = search_schedule(request);
    EXPECT_EQ(found.order.recompute.empty(), bytes == 800);
    EXPECT_NEAR(found.robustness->mean, 0, 1e-6) << "without noise it takes its makespan";
    const CompileResult order =
        compile({.source = ir::AnySchedule(found.order), .level = ir::Level::kComputeOnly});
    ASSERT_TRUE(order.ok());
    const SimulateResult simulated =
        simulate(order, {.costs = request.costs, .memory = request.memory});
    ASSERT_TRUE(simulated.ok());
    const Report& report = simulated.simulation->report;
    EXPECT_NEAR(report.cost, found.cost, 1e-9 * found.cost);
    EXPECT_LE(simulated.simulation->bound->value, report.cost);
    EXPECT_GE(simulated.simulation->bound->value, found.problem.time(found.bound.value) - 1e-9);
    double most = 0;
    for (const RankReport& rank : report.ranks) most = std::max(most, rank.peak_bytes.amount);
    EXPECT_LE(most, bytes);
    EXPECT_EQ(found.peak_memory, [&] {
      std::vector<Memory> peaks;
      for (const RankReport& rank : report.ranks)
        peaks.push_back(std::llround(rank.peak_bytes.amount / found.problem.memory_unit));
      return peaks;
    }());
    // The program carries them too.
    const CompileResult program = compile({.source = ir::AnySchedule(found.order)});
    EXPECT_EQ(program.program().recompute, found.order.recompute);
  }
}

}  // namespace
}  // namespace pipewright::schedule::search
