// What a simulation reports: memory, idle time and lower bounds, against papers, certificates and
// values by hand.
#include "pipewright/schedule/simulate/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "pipewright/schedule/bounds/schedule_bound.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/simulate/memory_model.h"
#include "pipewright/schedule/verify/verify.h"
#include "pipewright/schedules/registry.h"
#include "tests/schedule/simulated.h"

namespace pipewright::schedule {
namespace {

// arXiv 2401.10241, section 2.3: in stages counted from 1, rank i of ZB-H1 holds (p-i+1) M_B +
// (i-1) M_W at its peak, in steady state.
TEST(ReportTest, MemoryOfZbH1) {
  Costs costs = costs_of(1, 1, 1, 0);
  costs.activation_bytes = 100;
  costs.weight_input_bytes = 30;
  const Report report = report_of("ZB-H1", {4, 4, 16}, costs);
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(report.ranks[static_cast<size_t>(rank)].peak_bytes.amount,
              (4 - rank) * 100 + rank * 30);
}

TEST(ReportTest, BytesOfAProgram) {
  // Parameters while unsharded, gradients from B to REDUCE_GRAD, receive buffers until their use.
  ir::Diagnostics diagnostics;
  const ir::Program program =
      *lower(schedules::make_order(*schedules::find_schedule("1F1B"), {2, 2, 2}), {}, &diagnostics);
  Costs costs = costs_of(1, 1, 1, 0);
  costs.parameter_bytes = 1000;
  costs.gradient_bytes = 500;
  costs.activation_bytes = 100;
  costs.output_bytes = 10;
  costs.input_gradient_bytes = 7;
  const auto graph = ChannelGraph::of_program(program, ir::ChannelModel::kEdge, 0);
  const ir::Timeline timeline = simulate(graph, program, costs);
  const Report report = report_on(program, costs, timeline);
  // Rank 0 during 0B0: both activations, the received gradient, parameters, gradients.
  EXPECT_EQ(report.ranks[0].peak_bytes.amount, 1000 + 500 + 200 + 7);
  EXPECT_EQ(program.rows[0][static_cast<size_t>(*report.ranks[0].peak_bytes.step)],
            ir::Action(ir::ActionKind::kBackward, 0, 0));
  // Rank 1 during 1B0: its activation, and the input of 1F1, which PyTorch receives before it.
  EXPECT_EQ(report.ranks[1].peak_bytes.amount, 1000 + 500 + 100 + 10);
  EXPECT_EQ(MemoryModel(program, costs).along(timeline, 0).back().bytes, 0);
}

// What each rank's peak is made of, for stages that differ, counted by hand.
TEST(ReportTest, MemoryByUse) {
  ir::Diagnostics diagnostics;
  const ir::Program program =
      *lower(schedules::make_order(*schedules::find_schedule("1F1B"), {2, 2, 2}), {}, &diagnostics);
  Costs costs = costs_of(1, 1, 1, 0);
  costs.parameter_bytes = PerStage({1000, 3000});
  costs.gradient_bytes = PerStage({500, 1700});
  costs.shard_bytes = PerStage({20, 60});
  costs.optimizer_bytes = PerStage({80, 240});
  costs.activation_bytes = PerStage({100, 900});
  costs.output_bytes = 10;
  costs.input_gradient_bytes = 7;
  const auto graph = ChannelGraph::of_program(program, ir::ChannelModel::kEdge, 0);
  const Report report = report_on(program, costs, simulate(graph, program, costs));
  // Rank 0 in 0B0: two activations and a gradient that came. Rank 1 in 1B0: one activation, and the
  // input of the next microbatch. Parameters are unsharded, their shards stay.
  //                             parameters, unsharded, gradients, optimizer, receive, activations
  const MemoryParts expected[] = {{{20, 1000, 500, 80, 7, 200}}, {{60, 3000, 1700, 240, 10, 900}}};
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(report.ranks[rank].memory, expected[rank]);
    EXPECT_EQ(report.ranks[rank].peak_bytes.amount, expected[rank].sum());
  }
  // An order has neither UNSHARD nor receive buffers.
  const auto order = schedules::make_order(*schedules::find_schedule("1F1B"), {2, 2, 2});
  const Report plain = report_on(order, costs, simulate(order, costs));
  EXPECT_EQ(plain.ranks[1].memory, (MemoryParts{{3060, 0, 1700, 240, 0, 900}}));
}

TEST(ReportTest, PeaksOfActivationsAreTheCertificates) {
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    ir::Diagnostics diagnostics;
    const ir::Program program =
        *lower(schedules::make_order(*spec, {4, schedules::default_stages(*spec, 4), 8}), {},
               &diagnostics);
    const auto graph = ChannelGraph::of_program(program, ir::ChannelModel::kEdge, 0);
    const Report report = report_on(program, Costs(), simulate(graph, program, Costs()));
    const std::vector<RankCertificate> certificate = certify(program);
    for (size_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(report.ranks[rank].peak_activations, certificate[rank].activations);
    }
  }
}

// W alone counts as a backward, for report, certificate and verifier.
TEST(ReportTest, AWeightBackwardAloneKeepsActivations) {
  using K = ir::ActionKind;
  ir::Program program;
  program.placement = ir::Placement::loop(1, 1);
  program.num_microbatches = 2;
  program.rows = {{ir::Action(K::kForward, 0, 0), ir::Action(K::kForward, 0, 1),
                   ir::Action(K::kBackwardWeight, 0, 0), ir::Action(K::kBackwardWeight, 0, 1)}};
  const auto graph = ChannelGraph::of_program(program, ir::ChannelModel::kEdge, 0);
  Costs costs;
  costs.activation_bytes = 100;
  const ir::Timeline timeline = simulate(graph, program, costs);
  EXPECT_EQ(report_on(program, costs, timeline).ranks[0].peak_activations.amount, 2);
  EXPECT_EQ(certify(program)[0].activations.amount, 2);
  int most = 0;
  for (const MemorySample& sample : MemoryModel(program, costs).along(timeline, 0)) {
    EXPECT_GE(sample.activations, 0);
    most = std::max(most, sample.activations);
  }
  EXPECT_EQ(most, 2);
  ir::Diagnostics diagnostics;
  EXPECT_FALSE(verify(program, {}, &diagnostics));
  ASSERT_EQ(diagnostics.total(), 1U);
  EXPECT_EQ(diagnostics.kept()[0].rule, ir::Rule::kMissingWork);
}

// arXiv 2401.10241, appendix B, with `held` forwards before the first backward of rank 0.
TEST(ReportTest, TheBoundCoversThePapersWarmUp) {
  const double forward = 3, input = 2.5, weight = 1.75, comm = 0.375;
  const Costs costs = costs_of(forward, input, weight, comm);
  for (const auto& [name, held] : {std::pair("1F1B", 4), {"ZB-H1", 4}, {"ZB-H2", 7}}) {
    const auto order = schedules::make_order(*schedules::find_schedule(name), {4, 4, 16});
    const Report report = report_on(order, costs, simulate(order, costs));
    const double bubble = std::max(0.0, 3 * (input + 2 * comm) + (4 - held) * forward);
    const double value = bound_of(order, costs, report, {}).value;
    EXPECT_GE(value, 16 * (forward + input + weight) + bubble - 1e-9) << name;
    EXPECT_LE(value, report.cost) << name;
  }
}

TEST(ReportTest, TheCostIsAtMostTheMakespan) {
  for (const Simulated& one : all_simulated(4, 8)) {
    const ir::Schedule& schedule = one.schedule();
    const Costs costs = uneven_costs(schedule.placement, schedule.num_microbatches);
    const Report report = report_on(schedule, costs, simulate(one.graph, schedule, costs));
    EXPECT_LE(report.cost, report.makespan + 1e-9);
  }
}

// 2 ranks, one microbatch, transfers 2: rank 0 is idle for transfer, F, B and transfer, 2 + 1 + 2
// + 2.
TEST(ReportTest, ExposedCommunication) {
  const Report report = report_of("1F1B", {2, 2, 1}, costs_of(1, 1, 1, 2));
  EXPECT_EQ(report.ranks[0].exposed_communication, 2);  // the transfer of the gradient
  EXPECT_EQ(report.ranks[0].idle(), 7);
  EXPECT_EQ(report.ranks[1].exposed_communication, 0);  // its span starts after the transfer
  // Two microbatches: rank 1 receives the input of 1F1 long before it is needed.
  EXPECT_EQ(report_of("1F1B", {2, 2, 2}, costs_of(1, 1, 1, 2)).ranks[1].exposed_communication, 0);
}

}  // namespace
}  // namespace pipewright::schedule
