// Costs that are derived from recordings of which every time is known.
#include "pipewright/schedule/simulate/recorded_costs.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "pipewright/schedule/compile/compile.h"

namespace pipewright::schedule {
namespace {

// Every compute but the first of all starts 0.25 after it could. A simulation has no such gaps, so
// they are part of the costs, and both runs take as long.
TEST(RecordedCosts, WhatTheHostDoesBetweenActionsIsPartOfTheCosts) {
  constexpr double kGap = 0.25;
  const Costs costs{.unit = "ms",
                    .forward = 1 + kGap,
                    .backward_input = 1 + kGap / 2,
                    .backward_weight = 1 + kGap / 2,
                    .unshard = 0.5,
                    .link = {.latency = 0.5}};
  for (const char* const name : {"1F1B", "Interleaved1F1B", "ZBV"}) {
    const CompileResult compiled = compile({.source = std::string(name),
                                            .shape = {.ranks = 4, .microbatches = 8},
                                            .costs = costs,
                                            .depth = Depth::kVerify});
    const ir::Schedule& schedule = ir::schedule_of(*compiled.schedule);
    const SimulateResult run = simulate(compiled, {.costs = costs});
    ir::Timeline measured = run.simulation->timeline;
    bool is_first = true;
    for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
      for (size_t step = 0; step < schedule.rows[rank].size(); ++step) {
        if (ir::is_compute(schedule.rows[rank][step].kind()) && !std::exchange(is_first, false))
          measured.at(rank, step).start += kGap;
      }
    }
    const Costs found = recorded_costs(schedule, {"ms", measured});
    EXPECT_EQ(found.overlap, 0) << name;  // there are no compounds
    for (int stage = 0; stage < schedule.placement.num_stages(); ++stage) {
      EXPECT_NEAR(found.forward.at(stage), 1 + kGap, 1e-9) << name << " " << stage;
      EXPECT_NEAR(found.backward_input.at(stage) + found.backward_weight.at(stage), 2 + kGap, 1e-9)
          << name << " " << stage;
    }
    EXPECT_NEAR(simulate(compiled, {.costs = found}).simulation->report.makespan,
                ir::span_of(schedule.rows, measured).duration(), 1e-9)
        << name;
  }
}

// What compounds hide is found again, and both runs take as long. Where almost nothing is hidden,
// as in an executor that runs one part after the other, nothing is.
TEST(RecordedCosts, CompoundsHideWhatTheyHid) {
  for (const double overlap : {0.0, 0.02, 0.5, 1.0}) {
    const Costs costs{.unit = "ms",
                      .forward = 1,
                      .backward_input = 1.25,
                      .backward_weight = 0.5,
                      .overlap = overlap,
                      .link = {.latency = 0.25}};
    const CompileResult compiled = compile({.source = std::string("DualPipeV"),
                                            .shape = {.ranks = 4, .microbatches = 12},
                                            .depth = Depth::kVerify});
    const ir::Schedule& schedule = ir::schedule_of(*compiled.schedule);
    const SimulateResult run = simulate(compiled, {.costs = costs});
    const Costs found = recorded_costs(schedule, {"ms", run.simulation->timeline});
    EXPECT_NEAR(found.overlap, overlap < 0.1 ? 0 : overlap, 1e-9);
    EXPECT_NEAR(simulate(compiled, {.costs = found}).simulation->report.makespan,
                run.simulation->report.makespan, overlap == 0.02 ? 0.5 : 1e-9)
        << overlap;
  }
}

// A recorded backward has its recomputation before the gradient came, and its costs too.
TEST(RecordedCosts, ARecomputationRunsBeforeItsGradientComes) {
  for (const char* source : {"1F1B", "ZBV"}) {
    for (const double latency : {0.25, 1.5}) {
      const Costs costs{.unit = "ms",
                        .forward = 1,
                        .backward_input = 1.25,
                        .backward_weight = 0.5,
                        .link = {.latency = latency}};
      CompileResult compiled = compile({.source = std::string(source),
                                        .shape = {.ranks = 4, .microbatches = 8},
                                        .depth = Depth::kVerify});
      ir::Program program = compiled.program();
      program.recompute = {0, 2, 3};
      compiled = compile({.source = ir::AnySchedule(program), .depth = Depth::kVerify});
      const double makespan = simulate(compiled, {.costs = costs}).simulation->report.makespan;
      const SimulateResult run = simulate(compiled, {.costs = costs});
      const Costs found = recorded_costs(program, {"ms", run.simulation->timeline});
      EXPECT_NEAR(simulate(compiled, {.costs = found}).simulation->report.makespan, makespan, 1e-9)
          << source << " " << latency;
      EXPECT_NEAR(found.backward_input.at(0) +
                      (std::string(source) == "1F1B" ? found.backward_weight.at(0) : 0),
                  std::string(source) == "1F1B" ? 1.75 : 1.25, 1e-9);
      EXPECT_NEAR(found.recompute.at(0), 1, 1e-9);
    }
  }
}

// Rank 1 of a made-up run: its second tensor has been there since 2.5 when it looks for it at 4,
// and its third arrives at 7, half of a millisecond after it was sent. Rank 0 lasts unequally long.
TEST(RecordedCosts, AComputeDoesNotCostItsWaitForInputs) {
  using K = ir::ActionKind;
  ir::Program program;
  program.placement = ir::Placement::loop(2, 2);
  program.num_microbatches = 3;
  program.rows = {{{K::kForward, 0, 0},
                   {K::kSendF, 0, 0},
                   {K::kForward, 0, 1},
                   {K::kSendF, 0, 1},
                   {K::kForward, 0, 2},
                   {K::kSendF, 0, 2}},
                  {{K::kRecvF, 1, 0},
                   {K::kForward, 1, 0},
                   {K::kRecvF, 1, 1},
                   {K::kForward, 1, 1},
                   {K::kRecvF, 1, 2},
                   {K::kForward, 1, 2}}};
  const std::vector<std::vector<ir::Interval>> times = {
      {{0, 1}, {1, 1.5}, {1, 2}, {2, 4.5}, {2.5, 6.5}, {6.5, 7}},
      {{1, 1.5}, {1.5, 4}, {2, 4.5}, {4.5, 6}, {6.5, 7}, {7.25, 8}}};
  ir::Timeline timeline(program.rows);
  for (size_t rank = 0; rank < 2; ++rank) {
    for (size_t step = 0; step < 6; ++step) timeline.at(rank, step) = times[rank][step];
  }
  const Costs found = recorded_costs(program, {"ms", timeline});
  EXPECT_EQ(*found.links.at({0, 1}).latency, 0.5);
  EXPECT_EQ(found.forward.at(0), (1 + 1 + (6.5 - 2)) / 3);
  EXPECT_EQ(found.forward.at(1), ((4 - 1.5) + (6 - 4) + (8 - 7)) / 3);
  // Of a compute order, the gaps of rank 1 may be waits.
  ir::ComputeOrder order;
  order.placement = program.placement;
  order.num_microbatches = 3;
  order.rows = {{{K::kForward, 0, 0}, {K::kForward, 0, 1}, {K::kForward, 0, 2}},
                {{K::kForward, 1, 0}, {K::kForward, 1, 1}, {K::kForward, 1, 2}}};
  ir::Timeline computes(order.rows);
  for (size_t one = 0; one < 3; ++one) {
    computes.at(0, one) = timeline.at(0, 2 * one);
    computes.at(1, one) = timeline.at(1, 2 * one + 1);
  }
  const Costs of_order = recorded_costs(order, {"ms", computes});
  EXPECT_EQ(of_order.forward.at(0), found.forward.at(0));
  EXPECT_EQ(of_order.forward.at(1), (2.5 + 1.5 + 0.75) / 3);
}

// Rank 1 looks for tensors of rank 0 when it has time, so nothing tells how long they took; rank 0
// waits for those of rank 1.
TEST(RecordedCosts, ABusyReceiverIsNoSlowLink) {
  using K = ir::ActionKind;
  ir::Program program;
  program.placement = ir::Placement::loop(2, 3);  // stages 0 and 2 on rank 0
  program.num_microbatches = 2;
  program.rows = {{{K::kForward, 0, 0},
                   {K::kSendF, 0, 0},
                   {K::kForward, 0, 1},
                   {K::kSendF, 0, 1},
                   {K::kRecvF, 2, 0},
                   {K::kForward, 2, 0},
                   {K::kRecvF, 2, 1},
                   {K::kForward, 2, 1}},
                  {{K::kRecvF, 1, 0},
                   {K::kForward, 1, 0},
                   {K::kSendF, 1, 0},
                   {K::kRecvF, 1, 1},
                   {K::kForward, 1, 1},
                   {K::kSendF, 1, 1}}};
  // Rank 1 begins its step at 5, 4 later than rank 0 has sent.
  const std::vector<std::vector<ir::Interval>> times = {
      {{0, 1}, {1, 5}, {1, 2}, {2, 8}, {8, 8.5}, {8.5, 9}, {11, 11.5}, {11.5, 12}},
      {{5, 5}, {5, 8}, {8, 8.5}, {8, 8}, {8, 11}, {11, 11.5}}};
  ir::Timeline timeline(program.rows);
  for (size_t rank = 0; rank < 2; ++rank) {
    for (size_t step = 0; step < times[rank].size(); ++step)
      timeline.at(rank, step) = times[rank][step];
  }
  const Costs found = recorded_costs(program, {"ms", timeline});
  EXPECT_EQ(*found.links.at({1, 0}).latency, 0.5);
  EXPECT_EQ(*found.links.at({0, 1}).latency, 0.5);
  // Between 1.5, when the tensor may have been there, and 8; then without a gap.
  EXPECT_EQ(found.forward.at(1), (6.5 + 3) / 2);
  EXPECT_EQ(found.forward.at(2), 0.5);
}

}  // namespace
}  // namespace pipewright::schedule
