// Schedules with two replicas of the model: Chimera against the figures of its paper, and random
// orders against a reference that knows only the rules of ir/dependencies.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedules/registry.h"
#include "tests/schedule/simulated.h"

namespace pipewright::schedule {
namespace {

using ir::Action;
using ir::ActionKind;
using ir::ActionPart;

// Table 2 of arXiv 2107.06925, where a backward takes twice as long as a forward: a bubble ratio of
// (D-2)/(3N/2+D-2), and from D/2+1 to D activations, for D ranks and as many microbatches.
TEST(Chimera, HasTheBubbleAndTheMemoryOfThePaper) {
  for (int ranks = 2; ranks <= 16; ranks += 2) {
    const CompileResult result =
        compile({.source = "Chimera", .shape = {.ranks = ranks, .microbatches = ranks}});
    ASSERT_TRUE(result.ok());
    const auto simulated = simulate(result, {.costs = {}});  // F, I and W take 1 each
    ASSERT_TRUE(simulated.ok());
    const Report& report = simulated.simulation->report;
    EXPECT_NEAR(report.bubble_rate, (ranks - 2) / (1.5 * ranks + ranks - 2), 1e-12);
    int least = ranks, most = 0;
    for (const RankReport& one : report.ranks) {
      least = std::min(least, one.peak_activations.amount);
      most = std::max(most, one.peak_activations.amount);
    }
    EXPECT_EQ(least, ranks / 2 + 1);
    EXPECT_EQ(most, ranks);
  }
}

// Each rank holds the parameters of its two stages, reduces each of their gradients once, and its
// rank_scale holds for both.
TEST(Replicas, KeepParametersAndReduceGradientsPerRank) {
  const CompileResult result =
      compile({.source = "Chimera", .shape = {.ranks = 4, .microbatches = 8}});
  ASSERT_TRUE(result.ok());
  const Costs costs{.reduce_grad = 2,
                    .rank_scale = {1, 1, 1, 3},
                    .shard_bytes = PerStage(std::vector<double>{1, 10, 100, 1000})};
  const auto simulated = simulate(result, {.costs = costs});
  ASSERT_TRUE(simulated.ok());
  const ir::Program& program = result.program();
  for (size_t rank = 0; rank < 4; ++rank) {
    const double outer = rank == 0 || rank == 3 ? 1001 : 110;
    EXPECT_EQ(simulated.simulation->report.ranks[rank].peak_bytes.amount, outer);
    int reductions = 0;
    for (size_t step = 0; step < program.rows[rank].size(); ++step) {
      if (program.rows[rank][step].kind() != ActionKind::kReduceGrad) continue;
      EXPECT_EQ(simulated.simulation->timeline.at(rank, step).duration(), rank == 3 ? 6 : 2);
      ++reductions;
    }
    EXPECT_EQ(reductions, 2);
  }
}

// When each action of an order ends, in its rows, by running each row as far as the rules allow,
// again and again; nullopt if not all run. A transfer takes `latency`.
std::optional<std::vector<std::vector<double>>> ends_of(const ir::ComputeOrder& order,
                                                        const Costs& costs, double latency) {
  const int stages = order.placement.num_stages(), half = order.num_microbatches / 2;
  const auto rank_of = [&](int stage, int microbatch) {
    return order.placement.replica(microbatch < half ? 0 : 1).rank_of(stage);
  };
  std::map<std::tuple<char, int, int>, double> done;
  std::vector<std::vector<double>> ends(order.rows.size());
  // When the part may start, or nullopt if what it needs has not run.
  const auto ready = [&](ActionPart part) -> std::optional<double> {
    const int s = part.stage(), m = part.microbatch();
    std::vector<std::tuple<char, int, int>> needs;
    if (part.kind() == ActionKind::kForward) {
      if (s > 0) needs.emplace_back('F', s - 1, m);
    } else if (part.kind() == ActionKind::kBackwardWeight) {
      needs.emplace_back('I', s, m);
    } else {
      needs.emplace_back('F', s, m);
      if (s + 1 < stages) needs.emplace_back('I', s + 1, m);
    }
    double time = 0;
    for (const auto& need : needs) {
      const auto found = done.find(need);
      if (found == done.end()) return std::nullopt;
      const bool is_far = rank_of(std::get<1>(need), m) != rank_of(s, m);
      time = std::max(time, found->second + (is_far ? latency : 0));
    }
    return time;
  };
  const auto duration = [&](ActionPart part) {
    const double input = costs.backward_input.at(0), weight = costs.backward_weight.at(0);
    return part.kind() == ActionKind::kForward          ? costs.forward.at(0)
           : part.kind() == ActionKind::kBackwardInput  ? input
           : part.kind() == ActionKind::kBackwardWeight ? weight
                                                        : input + weight;
  };
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (size_t rank = 0; rank < order.rows.size(); ++rank) {
      const ir::Row& row = order.rows[rank];
      while (ends[rank].size() < row.size()) {
        double start = ends[rank].empty() ? 0 : ends[rank].back(), time = 0;
        bool may_run = true;
        for (const ActionPart part : row[ends[rank].size()].parts()) {
          const std::optional<double> at = ready(part);
          may_run = may_run && at;
          start = std::max(start, at.value_or(0));
          time += duration(part);
        }
        if (!may_run) break;
        for (const ActionPart part : row[ends[rank].size()].parts()) {
          const char kind = part.kind() == ActionKind::kForward          ? 'F'
                            : part.kind() == ActionKind::kBackwardWeight ? 'W'
                                                                         : 'I';
          done[{kind, part.stage(), part.microbatch()}] = start + time;
        }
        ends[rank].push_back(start + time);
        goes_on = true;
      }
    }
  }
  for (size_t rank = 0; rank < order.rows.size(); ++rank)
    if (ends[rank].size() < order.rows[rank].size()) return std::nullopt;
  return ends;
}

ir::ComputeOrder random_order(std::mt19937* random) {
  const auto below = [&](size_t limit) { return static_cast<size_t>((*random)() % limit); };
  const int ranks = 2 + 2 * static_cast<int>(below(2));
  const bool is_dualpipe = below(2) == 0;
  ir::ComputeOrder order = schedules::make_order(
      *schedules::find_schedule(is_dualpipe ? "DualPipe" : "Chimera"),
      {.ranks = ranks,
       .stages = ranks,
       .microbatches = 2 * static_cast<int>(below(3)) + (is_dualpipe ? 2 * ranks : 2)});
  move_actions(random, &order);
  return order;
}

TEST(Replicas, RandomOrdersAreValidIfTheyRunAndTakeAsLong) {
  std::mt19937 random(1);
  int valid = 0, refused = 0;
  for (int round = 0; round < 1000; ++round) {
    const ir::ComputeOrder order = random_order(&random);
    const Costs costs{.forward = 1.0 + static_cast<double>(random() % 3),
                      .backward_input = 2,
                      .backward_weight = 1.0 + static_cast<double>(random() % 2),
                      .link = {.latency = 0.5}};
    const auto expected = ends_of(order, costs, 0.5);
    const CompileResult result = compiled(order);
    ASSERT_EQ(result.ok(), expected.has_value()) << round;
    (expected ? valid : refused) += 1;
    if (!expected) continue;
    const auto simulated = simulate(result, {.costs = costs});
    ASSERT_TRUE(simulated.ok());
    const Report& report = simulated.simulation->report;
    for (size_t rank = 0; rank < order.rows.size(); ++rank) {
      for (size_t step = 0; step < order.rows[rank].size(); ++step) {
        ASSERT_NEAR(simulated.simulation->timeline.at(rank, step).end, (*expected)[rank][step],
                    1e-9);
      }
    }
    EXPECT_LE(simulated.simulation->bound->value, report.cost * (1 + 1e-12)) << round;
  }
  EXPECT_GT(valid, 100);
  EXPECT_GT(refused, 100);
}

// One replica alone has the bound of its own schedule, and both together at least all their work.
TEST(Replicas, HaveTheBoundOfOneReplicaOrOfAllWork) {
  const auto bound_of = [](const ir::Placement& placement, int microbatches) {
    return lower_bound(make_problem(placement, microbatches, {}, {.activations = PerRank(4)}));
  };
  const ir::Placement one = ir::Placement::loop(4, 4);
  const auto both = [&](int microbatches) {
    return bound_of(
        ir::Placement::replicas(one, ir::Placement::custom(4, {3, 2, 1, 0}), microbatches / 2),
        microbatches);
  };
  // With one microbatch each, the way there and back is what counts.
  EXPECT_EQ(both(2).value, bound_of(one, 1).value);
  EXPECT_EQ(both(2).name, bound_of(one, 1).name);
  // With many, F, I and W of two stages, 1 each.
  EXPECT_EQ(both(200).value, 3 * 200);
  EXPECT_EQ(both(200).name, "work");
}

TEST(Replicas, AnErrorNamesTheRankOfTheReplica) {
  ir::ComputeOrder order = schedules::make_order(*schedules::find_schedule("Chimera"),
                                                 {.ranks = 2, .stages = 2, .microbatches = 4});
  const auto error_of = [](const ir::ComputeOrder& wrong) {
    const CompileResult result = compiled(wrong);
    return result.ok() ? "" : result.diagnostics.kept()[0].message;
  };
  ir::ComputeOrder wrong = order;
  std::swap(wrong.rows[0], wrong.rows[1]);
  EXPECT_EQ(error_of(wrong),
            "`0F2` is on rank 0, but the placement puts stage 0 of replica 1 on rank 1");
  wrong = order;
  std::erase(wrong.rows[1], Action(ActionKind::kBackward, 0, 3));
  EXPECT_EQ(error_of(wrong), "stage 0 on rank 1 has no B or I of microbatch 3");
  EXPECT_EQ(error_of(order), "");
}

}  // namespace
}  // namespace pipewright::schedule
