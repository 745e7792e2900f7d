// Offload of activations in simulations and bounds, against an independent simulator, closed forms,
// and every order and every place of copies of small problems.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/simulate/simulate.h"
#include "tests/schedule/offload_simulator.h"

namespace pipewright::schedule {
namespace {

using tests::OffloadRun;
using tests::run_of;
using tests::Trip;
using tests::trips_of;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ---- random costs

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  int below(int n) { return static_cast<int>(engine_() % static_cast<unsigned>(n)); }
  // Far apart, so that two sums are equal only if they must be.
  PerStage list(int stages, int most) {
    std::vector<double> values;
    for (int stage = 0; stage < stages; ++stage) values.push_back(1 + below(most));
    return PerStage(std::move(values));
  }

 private:
  std::mt19937 engine_;
};

Costs random_costs(Random* random, int stages, int most = 1'000'003) {
  Costs costs = {.forward = random->list(stages, most),
                 .backward_input = random->list(stages, most),
                 .backward_weight = random->list(stages, most),
                 .offload = random->list(stages, most),
                 .reload = random->list(stages, most),
                 .link = {.latency = 1.0 * random->below(most)},
                 .activation_bytes = random->list(stages, 1000),
                 .weight_input_bytes = random->list(stages, 300)};
  // Some stages offload nothing, some more than there is.
  std::vector<double> bytes;
  for (int stage = 0; stage < stages; ++stage)
    bytes.push_back(std::max(0, random->below(1300) - 200));
  costs.offload_bytes = PerStage(std::move(bytes));
  return costs;
}

// A schedule of the catalogue, without idle slots.
CompileResult compiled(const std::string& name, int ranks, int stages, int microbatches,
                       ir::Level level = ir::Level::kComputeOnly) {
  const CompileResult named =
      compile({.source = name,
               .shape = {.ranks = ranks, .stages = stages, .microbatches = microbatches},
               .level = ir::Level::kComputeOnly});
  if (!named.ok()) return named;
  ir::ComputeOrder order = std::get<ir::ComputeOrder>(*named.schedule);
  for (ir::Row& row : order.rows)
    std::erase_if(row, [](const ir::Action& one) { return one.is_idle(); });
  return compile({.source = ir::AnySchedule(std::move(order)), .level = level});
}

// Every stage with offload_bytes offloads.
SimulateResult simulated(CompileResult one, const SimulateRequest& request) {
  std::visit(
      [&](ir::Schedule& schedule) {
        for (int stage = 0; stage < schedule.placement.num_stages(); ++stage) {
          if (request.costs.offload_bytes.at(stage) > 0) schedule.offload.push_back(stage);
        }
      },
      *one.schedule);
  return simulate(one, request);
}

// By hand: each copy takes half of an F, and the second one back must not come before B0.
TEST(OffloadTest, TheTimelineHasTheCopies) {
  const CompileResult one = compiled("GPipe", 1, 1, 2);
  ASSERT_TRUE(one.ok());
  const SimulateResult result = simulated(
      one, {.costs = {.offload = 0.5, .reload = 0.5, .activation_bytes = 10, .offload_bytes = 10}});
  ASSERT_TRUE(result.ok());
  const ir::ActionPart f0(ir::ActionKind::kForward, 0, 0), f1(ir::ActionKind::kForward, 0, 1);
  const std::vector<ir::Work> expected = {{0, ir::WorkTrack::kToHost, f0, {1, 1.5}},
                                          {0, ir::WorkTrack::kToDevice, f0, {1.5, 2}},
                                          {0, ir::WorkTrack::kToHost, f1, {2, 2.5}},
                                          {0, ir::WorkTrack::kToDevice, f1, {2.5, 3}}};
  EXPECT_EQ(result.simulation->timeline.work(), expected);
  EXPECT_EQ(result.simulation->report.makespan, 6);
}

struct Named {
  const char* name;
  int ranks, stages;
};
constexpr Named kNamed[] = {{"GPipe", 3, 3}, {"1F1B", 4, 4},   {"Interleaved1F1B", 2, 6},
                            {"ZB-H1", 4, 4}, {"V-Half", 4, 8}, {"DualPipeV", 3, 6}};

const ir::ComputeOrder& order_of(const CompileResult& one) {
  return std::get<ir::ComputeOrder>(*one.schedule);
}

TEST(OffloadTest, AgreesWithAnIndependentSimulator) {
  Random random(1);
  int longer = 0, too_large = 0;
  for (int run = 0; run < 300; ++run) {
    const Named& named = kNamed[run % std::size(kNamed)];
    const CompileResult one = compiled(named.name, named.ranks, named.stages, 8);
    ASSERT_TRUE(one.ok()) << named.name;
    const Costs costs = random_costs(&random, named.stages);
    const OffloadRun expected = run_of(order_of(one), costs);
    const SimulateResult result = simulated(one, {.costs = costs});
    ASSERT_TRUE(result.ok());
    const Report& report = result.simulation->report;
    EXPECT_EQ(report.cost, expected.cost) << named.name;
    EXPECT_EQ(report.makespan, expected.makespan) << named.name;
    const double most = *std::ranges::max_element(expected.peaks);
    for (size_t rank = 0; rank < expected.peaks.size(); ++rank) {
      EXPECT_EQ(report.ranks[rank].peak_bytes.amount, expected.peaks[rank])
          << named.name << ", rank " << rank;
      for (size_t step = 0; step < expected.starts[rank].size(); ++step)
        ASSERT_EQ(result.simulation->timeline.at(rank, step).start, expected.starts[rank][step])
            << named.name << ", rank " << rank << ", step " << step;
    }
    // The limit is kept, and an error otherwise; the bound for it holds.
    const SimulateResult fits = simulated(one, {.costs = costs, .memory = {.bytes = most}});
    ASSERT_TRUE(fits.ok()) << named.name;
    EXPECT_LE(fits.simulation->bound->value, expected.cost * (1 + 1e-9));
    too_large += !simulated(one, {.costs = costs, .memory = {.bytes = most - 1}}).ok();
    Costs none = costs;
    none.offload_bytes = 0;
    longer += report.cost > simulated(one, {.costs = none}).simulation->report.cost;
  }
  EXPECT_EQ(too_large, 300);
  EXPECT_GT(longer, 100) << "copies rarely matter";
}

// A program, whose transfers are actions, runs as its order where they take no time.
TEST(OffloadTest, ProgramsRunAsTheirOrders) {
  Random random(2);
  for (const Named& named : kNamed) {
    Costs costs = random_costs(&random, named.stages);
    costs.link.latency = 0;
    const SimulateResult order =
        simulated(compiled(named.name, named.ranks, named.stages, 6), {.costs = costs});
    const SimulateResult program =
        simulated(compiled(named.name, named.ranks, named.stages, 6, ir::Level::kComputeComms),
                  {.costs = costs});
    ASSERT_TRUE(order.ok() && program.ok());
    EXPECT_EQ(order.simulation->report.cost, program.simulation->report.cost) << named.name;
    for (size_t rank = 0; rank < order.simulation->report.ranks.size(); ++rank)
      EXPECT_EQ(order.simulation->report.ranks[rank].peak_bytes.amount,
                program.simulation->report.ranks[rank].peak_bytes.amount);
  }
}

TEST(OffloadTest, NothingToOffloadChangesNothing) {
  Random random(3);
  for (const Named& named : kNamed) {
    const CompileResult one = compiled(named.name, named.ranks, named.stages, 6);
    Costs costs = random_costs(&random, named.stages);
    costs.offload_bytes = 0;
    Costs plain = costs;
    plain.offload = plain.reload = 0;
    for (const MemoryBudget& memory : {MemoryBudget(), MemoryBudget{.activations = 50}}) {
      const SimulateResult with = simulated(one, {.costs = costs, .memory = memory});
      const SimulateResult without = simulated(one, {.costs = plain, .memory = memory});
      ASSERT_TRUE(with.ok() && without.ok());
      EXPECT_EQ(with.simulation->timeline, without.simulation->timeline);
      EXPECT_EQ(with.simulation->bound->value, without.simulation->bound->value);
      for (size_t rank = 0; rank < with.simulation->report.ranks.size(); ++rank)
        EXPECT_EQ(with.simulation->report.ranks[rank].peak_bytes,
                  without.simulation->report.ranks[rank].peak_bytes);
    }
  }
}

// Copies that take no time leave an activation that is smaller between F and its backward: the
// memory of the smaller one, and what is offloaded of the one whose F runs.
TEST(OffloadTest, CopiesWithoutTimeMakeActivationsSmaller) {
  for (const Named& named : {Named{"GPipe", 3, 3}, Named{"1F1B", 4, 4}, Named{"ZB-H1", 4, 4}}) {
    const CompileResult one = compiled(named.name, named.ranks, named.stages, 6);
    const Costs costs = {.forward = 3,
                         .backward_input = 4,
                         .backward_weight = 2,
                         .link = {.latency = 1},
                         .activation_bytes = 100,
                         .offload_bytes = 70,
                         .weight_input_bytes = 20};
    Costs smaller = costs;
    smaller.offload_bytes = 0;
    smaller.activation_bytes = 30;
    const SimulateResult with = simulated(one, {.costs = costs, .memory = {.bytes = 1000}});
    const SimulateResult expected = simulated(one, {.costs = smaller, .memory = {.bytes = 1000}});
    ASSERT_TRUE(with.ok() && expected.ok());
    for (size_t rank = 0; rank < with.simulation->timeline.num_ranks(); ++rank)
      EXPECT_TRUE(std::ranges::equal(with.simulation->timeline.row(rank),
                                     expected.simulation->timeline.row(rank)))
          << named.name;
    EXPECT_EQ(with.simulation->bound->value, expected.simulation->bound->value) << named.name;
    for (size_t rank = 0; rank < with.simulation->report.ranks.size(); ++rank)
      EXPECT_EQ(with.simulation->report.ranks[rank].peak_bytes.amount,
                expected.simulation->report.ranks[rank].peak_bytes.amount + 70)
          << named.name << ", rank " << rank;
  }
}

// One rank whose copies take longer than its work: the copy stream is busy from the end of the
// first F to the start of the last B.
TEST(OffloadTest, ACopyStreamThatIsAlwaysBusyMeetsTheBound) {
  const CompileResult one = compiled("GPipe", 1, 1, 4);
  const SimulateResult result = simulated(one, {.costs = {.forward = 1,
                                                          .backward_input = 1,
                                                          .backward_weight = 1,
                                                          .offload = 3,
                                                          .reload = 4,
                                                          .activation_bytes = 10,
                                                          .offload_bytes = 10}});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result.simulation->report.cost, 1 + 4 * (3 + 4) + 2);
  EXPECT_EQ(result.simulation->bound->value, 1 + 4 * (3 + 4) + 2);
  EXPECT_EQ(result.simulation->bound->name, "copies");
}

// The times on a critical path add up to the makespan; an action may take longer by its slack, and
// no longer.
TEST(OffloadTest, SlackAndCriticalPathKnowTheCopies) {
  Random random(4);
  int critical = 0, late = 0, with_copies = 0;
  for (int run = 0; run < 60; ++run) {
    const Named& named = kNamed[run % std::size(kNamed)];
    const CompileResult one = compiled(named.name, named.ranks, named.stages, 6);
    const ir::ComputeOrder& order = order_of(one);
    const Costs costs = random_costs(&random, named.stages);
    const ChannelGraph graph = ChannelGraph::of_order(order);
    const ir::Timeline timeline = simulate(graph, order, costs);
    const double makespan = ir::span_of(order.rows, timeline).duration();
    double sum = 0;
    bool copies = false;
    for (const CriticalStep& step : critical_path(graph, order, costs, timeline)) {
      sum += step.transfer + step.copies +
             timeline.at(static_cast<size_t>(step.rank), static_cast<size_t>(step.step)).duration();
      copies = copies || step.copies > 0;
    }
    EXPECT_EQ(sum, makespan) << named.name;
    with_copies += copies;
    const std::vector<double> slack = slack_of(graph, order, costs, timeline);
    for (int trial = 0; trial < 20; ++trial) {
      const auto cell = static_cast<size_t>(random.below(static_cast<int>(timeline.size())));
      const double duration = timeline[cell].duration();
      const auto makespan_if = [&](double more) {
        std::vector<double> stretch(timeline.size(), 1);
        stretch[cell] = (duration + more) / duration;
        return ir::span_of(order.rows, simulate(graph, order, costs, stretch)).duration();
      };
      EXPECT_NEAR(makespan_if(slack[cell]), makespan, 1e-6) << named.name;
      EXPECT_GT(makespan_if(slack[cell] + 1), makespan + 0.5) << named.name;
      (slack[cell] == 0 ? critical : late) += 1;
    }
  }
  EXPECT_GT(critical, 100);
  EXPECT_GT(late, 100);
  EXPECT_GT(with_copies, 20);
}

// ---- every order and every place of copies

// All rows of a rank that runs F, I and W of these stages in the order of microbatches.
std::vector<ir::Row> all_rows(const std::vector<int>& stages, int microbatches) {
  constexpr ir::ActionKind kKinds[] = {ir::ActionKind::kForward, ir::ActionKind::kBackwardInput,
                                       ir::ActionKind::kBackwardWeight};
  std::vector<ir::Row> rows;
  ir::Row row;
  std::vector<int> done(3 * stages.size());
  const auto extend = [&](const auto& self) -> void {
    bool complete = true;
    for (size_t at = 0; at < done.size(); ++at) {
      if (done[at] == microbatches) continue;
      complete = false;
      const size_t kind = at % 3;
      if (kind > 0 && done[at] >= done[at - 1]) continue;                           // after F, or I
      if (kind == 0 && at > 0 && done[at] >= done[at - 3]) continue;                // F of the last
      if (kind == 1 && at + 3 < done.size() && done[at] >= done[at + 3]) continue;  // I of the next
      row.emplace_back(kKinds[kind], stages[at / 3], done[at]++);
      self(self);
      --done[at];
      row.pop_back();
    }
    if (complete) rows.push_back(row);
  };
  extend(extend);
  return rows;
}

// Calls visit() for all places of the copies back of these trips.
template <typename Visit>
void for_each_place(std::vector<std::vector<Trip>>* trips, size_t rank, size_t trip,
                    const Visit& visit) {
  if (rank == trips->size()) return visit();
  if (trip == (*trips)[rank].size()) return for_each_place(trips, rank + 1, 0, visit);
  Trip& one = (*trips)[rank][trip];
  for (one.place = one.forward + 1; one.place <= one.backward; ++one.place)
    for_each_place(trips, rank, trip + 1, visit);
}

TEST(OffloadTest, NoBoundIsAboveTheOptimumOfSmallProblems) {
  Random random(5);
  int schedules = 0, met = 0, by_copies = 0;
  for (int run = 0; run < 600; ++run) {
    const bool one_rank = run % 2 == 0;
    const ir::Placement placement =
        one_rank ? ir::Placement::loop(1, run % 4 == 0 ? 1 : 2) : ir::Placement::loop(2, 2);
    const int stages = placement.num_stages();
    const int microbatches = !one_rank ? 2 : stages == 1 ? 3 : 1;
    const Costs costs = random_costs(&random, stages, run % 3 == 0 ? 4 : 12);
    std::vector<std::vector<ir::Row>> rows;
    for (int rank = 0; rank < placement.num_ranks(); ++rank)
      rows.push_back(all_rows(placement.stages_of(rank), microbatches));
    std::vector<std::pair<double, double>> found;  // memory and cost
    ir::ComputeOrder order;
    order.placement = placement;
    order.num_microbatches = microbatches;
    const auto add = [&] {
      std::vector<std::vector<Trip>> trips;
      for (const ir::Row& row : order.rows) trips.push_back(trips_of(row, costs));
      for_each_place(&trips, 0, 0, [&] {
        const OffloadRun one = run_of(order, costs, trips);
        if (one.cost < kInfinity)
          found.emplace_back(*std::ranges::max_element(one.peaks), one.cost);
      });
    };
    for (const ir::Row& first : rows.front()) {
      order.rows = {first};
      if (one_rank) {
        add();
        continue;
      }
      for (const ir::Row& second : rows.back()) {
        order.rows = {first, second};
        add();
      }
    }
    // For several limits, the cheapest of what fits.
    std::ranges::sort(found);
    double best = kInfinity;
    for (size_t one = 0; one < found.size(); ++one) {
      best = std::min(best, found[one].second);
      if (one + 1 < found.size() && found[one + 1].first == found[one].first) continue;
      const Problem problem =
          make_problem(placement, microbatches, costs, {.bytes = found[one].first});
      for (const Bound& bound : lower_bounds(problem))
        EXPECT_LE(problem.time(bound.value), best) << "run " << run << ", " << bound.name;
      const Bound bound = lower_bound(problem);
      met += problem.time(bound.value) == best;
      by_copies += problem.time(bound.value) == best && bound.name == "copies";
    }
    schedules += static_cast<int>(found.size());
  }
  EXPECT_GT(schedules, 90'000);
  EXPECT_GT(met, 200) << "the bounds say little";
  EXPECT_GT(by_copies, 20);
}

}  // namespace
}  // namespace pipewright::schedule
