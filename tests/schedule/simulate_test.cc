// Compares the simulator with published numbers: tables and closed forms from papers.
#include "pipewright/schedule/simulate/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/simulate/report.h"
#include "pipewright/schedules/registry.h"
#include "tests/schedule/simulated.h"

namespace pipewright::schedule {
namespace {

TEST(SimulateTest, GoldenValuesAtUnitCost) {
  struct Golden {
    const char* name;
    int per_rank;
    double longest_4_8, longest_8_16;
  };
  for (const Golden& golden : {Golden{"GPipe", 1, 33, 69},
                               {"1F1B", 1, 33, 69},
                               {"Interleaved1F1B", 2, 28.5, 58.5},
                               {"ZBVZeroBubble", 2, 24, 48},
                               {"DualPipeV", 2, 27, 55}}) {
    const Costs costs = costs_of(1, 1, 1, 0, golden.per_rank);
    EXPECT_EQ(report_of(golden.name, {4, 4 * golden.per_rank, 8}, costs).cost, golden.longest_4_8)
        << golden.name;
    EXPECT_EQ(report_of(golden.name, {8, 8 * golden.per_rank, 16}, costs).cost, golden.longest_8_16)
        << golden.name;
  }
}

// "Zero bubble" refers to the span of each rank. The makespan is longer, because the ranks start
// one after the other.
TEST(SimulateTest, GoldenMakespans) {
  EXPECT_EQ(report_of("ZB-H2", {4, 4, 8}, Costs()).makespan, 27);
  EXPECT_EQ(report_of("ZB-H2", {8, 8, 16}, Costs()).makespan, 55);
  EXPECT_EQ(report_of("ZBVZeroBubble", {4, 8, 8}, costs_of(1, 1, 1, 0, 2)).makespan, 25.5);
  EXPECT_EQ(report_of("ZBVZeroBubble", {8, 16, 16}, costs_of(1, 1, 1, 0, 2)).makespan, 51.5);
}

// The same schedules with costs that are not multiples of each other: F 10, I 11, W 7 per rank,
// transfers 1, 4 ranks, 8 microbatches.
TEST(SimulateTest, GoldenValuesAtUnevenCost) {
  struct Golden {
    const char* name;
    int per_rank;
    double longest;
  };
  const auto cost = [](const char* name, int per_rank) {
    return report_of(name, {4, 4 * per_rank, 8}, costs_of(10, 11, 7, 1, per_rank)).cost;
  };
  for (const Golden& golden : {Golden{"GPipe", 1, 314},
                               {"1F1B", 1, 324},
                               {"Interleaved1F1B", 2, 280},
                               {"ZB-H1", 1, 278},
                               {"ZB-H2", 1, 251},
                               {"ZBVZeroBubble", 2, 252},
                               {"1F1B-V", 2, 332},
                               {"DualPipeV", 2, 278.5}})
    EXPECT_EQ(cost(golden.name, golden.per_rank), golden.longest) << golden.name;
  // The reference's orders of these two have the same block, cost and memory at unit cost, but are
  // longer here: it does not move V-Min's actions earlier, and places one W of V-Half elsewhere.
  EXPECT_LE(cost("V-Half", 2), 280.5);
  EXPECT_LE(cost("V-Min", 2), 358.5);
}

TEST(SimulateTest, GoldenValuesOfInterleavedWithGroupsAndExtraWarmup) {
  const Costs costs = costs_of(1, 1, 1, 0, 2);
  for (const auto& [shape, expected, first_peak, last_peak] :
       {std::tuple(schedules::Shape{4, 8, 8, 0, true}, 28.5, 12, 6),
        std::tuple(schedules::Shape{8, 16, 16, 0, true}, 58.5, 24, 10),
        std::tuple(schedules::Shape{4, 8, 8, 8, false}, 28.5, 15, 9),
        std::tuple(schedules::Shape{8, 16, 16, 16, false}, 58.5, 31, 17)}) {
    const Report report = report_of("Interleaved1F1B", shape, costs);
    EXPECT_EQ(report.cost, expected);
    EXPECT_EQ(report.ranks.front().peak_activations.amount, first_peak);
    EXPECT_EQ(report.ranks.back().peak_activations.amount, last_peak);
  }
}

// arXiv 2401.10241, Tables 9 (costs in ms) and 5 (bubble rates), to four decimals.
TEST(SimulateTest, ZeroBubblePapersTable5) {
  struct Row {
    int ranks, microbatches, chunks;
    double forward, input, weight, comm;
    double rate_1f1b, rate_interleaved, rate_zb_h1, rate_zb_h2, rate_zb_1p, rate_zb_2p;
  };
  for (const Row& row : {
           Row{8, 24, 3, 18.522, 18.086, 9.337, 0.601, .2431, .1090, .1585, .1083, .1585, .0433},
           Row{8, 32, 3, 18.513, 18.086, 9.331, 0.626, .1985, .0847, .1242, .0837, .1242, .0039},
           Row{8, 64, 3, 18.546, 18.097, 9.321, 0.762, .1240, .0461, .0674, .0444, .0674, .0026},
           Row{16, 48, 3, 11.347, 11.248, 8.132, 0.377, .2552, .1136, .1397, .0672, .1397, .0066},
           Row{16, 64, 3, 11.307, 11.254, 8.101, 0.379, .2082, .0878, .1088, .0516, .1088, .0054},
           Row{16, 128, 3, 11.325, 11.308, 8.109, 0.378, .1251, .0459, .0576, .0266, .0576, .0028},
       }) {
    const Costs costs = costs_of(row.forward, row.input, row.weight, row.comm);
    EXPECT_NEAR(report_of("1F1B", {row.ranks, row.ranks, row.microbatches}, costs).bubble_rate,
                row.rate_1f1b, 5e-5);
    EXPECT_NEAR(report_of("ZB-H1", {row.ranks, row.ranks, row.microbatches}, costs).bubble_rate,
                row.rate_zb_h1, 5e-5);
    EXPECT_NEAR(report_of("ZB-H2", {row.ranks, row.ranks, row.microbatches}, costs).bubble_rate,
                row.rate_zb_h2, 5e-5);
    // In microseconds, as the paper rounds them.
    const auto time = [](double ms) { return static_cast<int64_t>(std::llround(1000 * ms)); };
    const std::vector<schedules::StageTimes> times(
        static_cast<size_t>(row.ranks),
        {time(row.forward), time(row.input), time(row.weight), time(row.comm), time(row.comm)});
    EXPECT_NEAR(
        report_of("ZB-1p", {row.ranks, row.ranks, row.microbatches}, costs, {times}).bubble_rate,
        row.rate_zb_1p, 5e-5);
    EXPECT_NEAR(
        report_of("ZB-2p", {row.ranks, row.ranks, row.microbatches}, costs, {times}).bubble_rate,
        row.rate_zb_2p, 5e-5);
    const Costs shared = costs_of(row.forward, row.input, row.weight, row.comm, row.chunks);
    EXPECT_NEAR(
        report_of("Interleaved1F1B", {row.ranks, row.chunks * row.ranks, row.microbatches}, shared)
            .bubble_rate,
        row.rate_interleaved, 5e-5);
  }
}

// Schedules that plan with costs plan for microbatches of different sizes too, and never lose by
// it.
TEST(SimulateTest, PlansForMicrobatchesOfDifferentSizes) {
  const std::vector<double> sizes = {3, 1, 0.5, 1, 2, 1, 1, 0.5, 1, 2, 1, 2.5, 0.5, 0.5, 1, 3};
  struct Case {
    const char* name;
    int stages, microbatches;
  };
  for (const auto& [name, stages, microbatches] :
       {Case{"V-Adaptive", 8, 8}, {"ZB-1p", 4, 16}, {"ZB-2p", 4, 16}}) {
    int better = 0;
    for (size_t first = 0; first < sizes.size(); ++first) {
      SCOPED_TRACE(std::string(name) + " from " + std::to_string(first));
      Costs costs = costs_of(10, 11, 7, 1);
      for (int microbatch = 0; microbatch < microbatches; ++microbatch)
        costs.microbatch_scale.push_back(
            sizes[(first + static_cast<size_t>(microbatch)) % sizes.size()]);
      const std::vector<schedules::StageTimes> times(static_cast<size_t>(stages),
                                                     {100, 110, 70, 10, 10});
      const schedules::Shape shape{4, stages, microbatches};
      const double blind = report_of(name, shape, costs, {times}).cost;
      const double seeing = report_of(name, shape, costs, {times, costs.microbatch_scale}).cost;
      EXPECT_LE(seeing, blind);
      better += seeing < blind;
      const CompileResult compiled = compile({.source = name,
                                              .shape = {.ranks = 4, .microbatches = microbatches},
                                              .costs = costs,
                                              .level = ir::Level::kComputeOnly});
      EXPECT_EQ(simulate(compiled, {.costs = costs}).simulation->report.cost, seeing);
    }
    EXPECT_GT(better, 0) << name;
  }
}

// V schedules at unit cost: 6m + 6p - 3k - 1 slots for an even number k of activations, the least
// possible (arXiv 2405.15362, figure 13), and one more for an odd one, as their pattern cannot
// alternate.
TEST(SimulateTest, VAdaptiveAtUnitCost) {
  for (const auto& [ranks, microbatches] : {std::pair(4, 8), {8, 16}}) {
    for (int memory = 2 * ((ranks + 4) / 3); memory <= 2 * ranks; ++memory) {
      schedules::Shape shape{ranks, 2 * ranks, microbatches};
      shape.memory = memory / 2.0;
      const int least = 6 * microbatches + std::max(0, 6 * ranks - 3 * memory - 1);
      EXPECT_EQ(report_of("V-Adaptive", shape, Costs()).cost, least + memory % 2) << memory;
    }
  }
}

// OLMo-core 3's report, Table 10: PP 4, 8 microbatches.
TEST(SimulateTest, OlmoTable) {
  const Report interleaved = report_of("Interleaved1F1B", {4, 8, 8}, costs_of(1, 1, 1, 0, 2));
  EXPECT_NEAR(interleaved.bubble_rate, .158, 5e-4);
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(interleaved.ranks[static_cast<size_t>(rank)].peak_activations.amount, 11 - 2 * rank);
  const Report v = report_of("1F1B-V", {4, 8, 8}, costs_of(1, 1, 1, 0, 2));
  EXPECT_NEAR(v.bubble_rate, .238, 5e-4);
  for (const RankReport& rank : v.ranks) EXPECT_EQ(rank.peak_activations.amount, 6);
}

// DeepSeek's figure of DualPipe with 8 ranks and 20 microbatches, cut in half: 66 slots, of which
// each rank works in 60.
TEST(SimulateTest, DualPipeVFigure) {
  const Report report = report_of("DualPipeV", {4, 8, 10}, Costs());
  EXPECT_EQ(report.makespan, 66);
  EXPECT_EQ(report.cost, 66);
  for (const RankReport& rank : report.ranks) {
    EXPECT_EQ(report.makespan - rank.busy, 6);
    EXPECT_EQ(rank.peak_activations.amount, 9);
  }
}

double makespan(const ir::Schedule& schedule, const ir::Timeline& timeline) {
  return ir::span_of(schedule.rows, timeline).duration();
}

// By brute force: one action at a time is stretched by its slack, and by a little more.
TEST(SimulateTest, SlackIsHowMuchLaterAnActionCanEnd) {
  int critical = 0, free = 0;
  for (const Simulated& one : all_simulated(3, 6)) {
    const ir::Schedule& schedule = one.schedule();
    const Costs costs = uneven_costs(schedule.placement, schedule.num_microbatches);
    const ir::Timeline timeline = simulate(one.graph, schedule, costs);
    const std::vector<double> slack = slack_of(one.graph, schedule, costs, timeline);
    std::vector<double> stretch(timeline.size(), 1);
    for (size_t number = 0; number < timeline.size(); number += 3) {
      const double duration = timeline[number].duration();
      ASSERT_GE(slack[number], 0);
      if (duration == 0) continue;
      // The cost of a RECV is 0, so it cannot be stretched.
      bool receives = false;
      for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
        const size_t first = timeline.index(rank, 0);
        if (number >= first && number < first + schedule.rows[rank].size())
          receives = ir::is_receive(schedule.rows[rank][number - first].kind());
      }
      if (receives) continue;
      stretch[number] = (duration + slack[number]) / duration;
      EXPECT_NEAR(makespan(schedule, simulate(one.graph, schedule, costs, stretch)),
                  makespan(schedule, timeline), 1e-9);
      stretch[number] = (duration + slack[number] + 0.5) / duration;
      EXPECT_NEAR(makespan(schedule, simulate(one.graph, schedule, costs, stretch)),
                  makespan(schedule, timeline) + 0.5, 1e-9);
      stretch[number] = 1;
      ++(slack[number] == 0 ? critical : free);
    }
  }
  EXPECT_GT(critical, 500);
  EXPECT_GT(free, 500);
}

TEST(SimulateTest, TheMakespanIsFromTheFirstStartToTheLastEnd) {
  using K = ir::ActionKind;
  const ir::Rows rows = {{ir::Action(), ir::Action(K::kForward, 0, 0)},
                         {ir::Action(K::kForward, 1, 0), ir::Action()}};
  ir::Timeline timeline(rows);
  timeline.at(0, 1) = {2, 3};
  timeline.at(1, 0) = {4, 7};
  EXPECT_EQ(ir::span_of(rows, timeline), (ir::Interval{2, 7}));
  EXPECT_EQ(ir::span_of({}, ir::Timeline()), ir::Interval());
}

TEST(SimulateTest, TheCriticalPathFillsTheMakespan) {
  for (const Simulated& one : all_simulated(4, 8)) {
    const ir::Schedule& schedule = one.schedule();
    const Costs costs = uneven_costs(schedule.placement, schedule.num_microbatches);
    const ir::Timeline timeline = simulate(one.graph, schedule, costs);
    double at = 0;
    for (const CriticalStep& step : critical_path(one.graph, schedule, costs, timeline)) {
      const ir::Interval& interval =
          timeline.at(static_cast<size_t>(step.rank), static_cast<size_t>(step.step));
      const bool receives = ir::is_receive(
          schedule.rows[static_cast<size_t>(step.rank)][static_cast<size_t>(step.step)].kind());
      // A RECV ends with its SEND.
      if (!receives) {
        EXPECT_NEAR(interval.start, at + step.transfer, 1e-9);
      }
      at = interval.end;
    }
    EXPECT_EQ(at, makespan(schedule, timeline));
  }
}

// Costs that are not sums of powers of two, so that equal times differ by rounding. In tenths, the
// same costs are exact: what is 0 there must be 0 here.
TEST(SimulateTest, EqualTimesDoNotDifferByRounding) {
  const auto costs_in = [](double unit) {
    return costs_of(1 * unit, 3 * unit, 7 * unit, 2 * unit);
  };
  int critical = 0, never_idle = 0;
  for (const Simulated& one : all_simulated(4, 12)) {
    const ir::Schedule& schedule = one.schedule();
    const ir::Timeline exact = simulate(one.graph, schedule, costs_in(1));
    const ir::Timeline timeline = simulate(one.graph, schedule, costs_in(0.1));
    const std::vector<double> exact_slack = slack_of(one.graph, schedule, costs_in(1), exact);
    const std::vector<double> slack = slack_of(one.graph, schedule, costs_in(0.1), timeline);
    for (size_t number = 0; number < slack.size(); ++number) {
      ASSERT_EQ(slack[number] == 0, exact_slack[number] == 0);
      ASSERT_GE(slack[number], 0);
    }
    for (const CriticalStep& step : critical_path(one.graph, schedule, costs_in(0.1), timeline)) {
      ASSERT_EQ(
          slack[timeline.index(static_cast<size_t>(step.rank), static_cast<size_t>(step.step))], 0);
      ++critical;
    }
    const Report exact_report = report_on(schedule, costs_in(1), exact);
    const Report report = report_on(schedule, costs_in(0.1), timeline);
    EXPECT_EQ(report.bubble_rate == 0, exact_report.bubble_rate == 0);
    for (size_t rank = 0; rank < report.ranks.size(); ++rank) {
      ASSERT_EQ(report.ranks[rank].idle() == 0, exact_report.ranks[rank].idle() == 0);
      ASSERT_EQ(report.ranks[rank].exposed_communication == 0,
                exact_report.ranks[rank].exposed_communication == 0);
      never_idle += report.ranks[rank].idle() == 0;
    }
  }
  EXPECT_GT(critical, 1000);
  EXPECT_GT(never_idle, 10);
}

// With transfers that take no time and unbounded capacity, a program has the times of its order.
TEST(SimulateTest, AProgramWithFreeTransfersRunsAsItsOrder) {
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    const ir::ComputeOrder order =
        schedules::make_order(*spec, {4, schedules::default_stages(*spec, 4), 8});
    const Costs costs = recomputing(costs_of(3, 2.5, 1.75, 0), std::vector<int>{1, 2},
                                    order.placement.num_stages());
    const ir::Timeline of_order = simulate(ChannelGraph::of_order(order), order, costs);
    for (const ir::Receives receives : {ir::Receives::kPytorch, ir::Receives::kLatest}) {
      ir::Lowering policies;
      policies.receives = receives;
      ir::Diagnostics diagnostics;
      const ir::Program program = *lower(order, policies, &diagnostics);
      const auto graph =
          ChannelGraph::of_program(program, ir::ChannelModel::kEdge, ir::kUnboundedCapacity);
      const ir::Timeline of_program = simulate(graph, program, costs);
      for (size_t rank = 0; rank < 4; ++rank) {
        size_t step = 0;
        for (size_t at = 0; at < program.rows[rank].size(); ++at) {
          if (!ir::is_compute(program.rows[rank][at].kind())) continue;
          while (order.rows[rank][step].is_idle()) ++step;
          EXPECT_EQ(of_program.at(rank, at), of_order.at(rank, step++)) << spec->name;
        }
      }
    }
  }
}

// Where every stage recomputes, and each recomputation fits in the wait for a gradient, 1F1B takes
// M times all work of a stage, and P-1 times the rest once more.
TEST(SimulateTest, ARecomputationDoesNotWaitForTheGradient) {
  for (const int ranks : {2, 4, 7}) {
    for (const int microbatches : {ranks, 3 * ranks}) {
      const double f = 3, b = 5, transfer = 0.25;
      Costs costs{.forward = f, .backward_input = 4, .backward_weight = 1};
      costs.link.latency = transfer;
      std::vector<int> all(static_cast<size_t>(ranks));
      std::iota(all.begin(), all.end(), 0);
      const Costs again = recomputing(costs, all, ranks);
      const auto order =
          schedules::make_order(*schedules::find_schedule("1F1B"), {ranks, ranks, microbatches});
      const double expected = microbatches * (2 * f + b) + (ranks - 1) * (f + b + 2 * transfer);
      EXPECT_NEAR(report_on(order, again, simulate(order, again)).makespan, expected, 1e-9);
      const auto graph = ChannelGraph::of_order(order);
      EXPECT_NEAR(report_on(order, again, simulate(graph, order, again)).makespan, expected, 1e-9);
    }
  }
}

// By hand: 1F1B on 2 ranks, 2 microbatches, F 1, B 2, transfers 1, one queue per rank. PyTorch
// posts 1RECV_F1 before 1B0, so that it is ahead of 1SEND_B0 in the queue.
TEST(SimulateTest, ATransferOccupiesItsQueues) {
  ir::Diagnostics diagnostics;
  const ir::Program program =
      *lower(schedules::make_order(*schedules::find_schedule("1F1B"), {2, 2, 2}), {}, &diagnostics);
  const auto graph = ChannelGraph::of_program(program, ir::ChannelModel::kRank, 0);
  const ir::Timeline timeline = simulate(graph, program, costs_of(1, 1, 1, 1));
  const auto interval = [&](size_t rank, ir::ActionKind kind, int microbatch) {
    const ir::Action action(kind, static_cast<int>(rank), microbatch);
    const auto at = std::ranges::find(program.rows[rank], action) - program.rows[rank].begin();
    return timeline.at(rank, static_cast<size_t>(at));
  };
  using K = ir::ActionKind;
  using Interval = ir::Interval;
  EXPECT_EQ(interval(0, K::kForward, 1), (Interval{1, 2}));
  EXPECT_EQ(interval(0, K::kSendF, 0), (Interval{1, 2}));
  EXPECT_EQ(interval(1, K::kForward, 0), (Interval{2, 3}));
  EXPECT_EQ(interval(0, K::kSendF, 1), (Interval{3, 4}));  // 1RECV_F1 is posted after 1F0
  EXPECT_EQ(interval(1, K::kBackward, 0), (Interval{3, 5}));
  EXPECT_EQ(interval(1, K::kSendB, 0), (Interval{5, 6}));
  EXPECT_EQ(interval(1, K::kForward, 1), (Interval{5, 6}));
  EXPECT_EQ(interval(0, K::kBackward, 0), (Interval{6, 8}));
  EXPECT_EQ(interval(1, K::kBackward, 1), (Interval{6, 8}));
  EXPECT_EQ(interval(0, K::kBackward, 1), (Interval{9, 11}));
}

}  // namespace
}  // namespace pipewright::schedule
