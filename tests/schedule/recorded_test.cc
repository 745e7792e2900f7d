// What is derived from a recording, judged by recordings of simulated runs, whose costs are known.
#include <gtest/gtest.h>

#include <sstream>

#include "pipewright/ir/text/render.h"
#include "pipewright/ir/text/schedule_json.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/simulate/drift.h"
#include "pipewright/schedule/simulate/recorded_costs.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::schedule {
namespace {

Costs known_costs(int stages) {
  Costs costs{.unit = "ms"};
  std::vector<double> forward, input, weight;
  for (int stage = 0; stage < stages; ++stage) {
    forward.push_back(3 + 0.5 * stage);
    input.push_back(2 + 0.25 * stage);
    weight.push_back(2 + 0.25 * stage);  // as much as I, so that it can be told from a B
  }
  costs.forward = PerStage(forward);
  costs.backward_input = PerStage(input);
  costs.backward_weight = PerStage(weight);
  costs.unshard = 0.5;
  costs.reduce_grad = 0.75;
  costs.link.latency = 0.125;
  return costs;
}

CompileResult program_of(const schedules::ScheduleSpec& spec, const Costs& costs) {
  return compile({.source = std::string(spec.name),
                  .shape = {.ranks = 4, .microbatches = 8},
                  .costs = costs,
                  .depth = Depth::kVerify});
}

// A simulated run as a file.
ir::Source recording_file(const CompileResult& compiled, const ir::Timeline& timeline) {
  std::ostringstream out;
  ir::print_json(*compiled.schedule, ir::Recording{"ms", timeline}, out);
  return {"run.json", out.str()};
}

class RecordedRun : public testing::TestWithParam<const schedules::ScheduleSpec*> {};

TEST_P(RecordedRun, GivesBackTimesAndCosts) {
  const Costs costs = known_costs(schedules::default_stages(*GetParam(), 4));
  const CompileResult compiled = program_of(*GetParam(), costs);
  ASSERT_TRUE(compiled.ok()) << ir::render(compiled.diagnostics, nullptr, {});
  const SimulateResult predicted = simulate(compiled, {.costs = costs});
  ASSERT_TRUE(predicted.ok());
  const ir::Timeline& timeline = predicted.simulation->timeline;
  const ir::Source file = recording_file(compiled, timeline);

  const CompileResult read = compile({.source = &file, .depth = Depth::kVerify});
  ASSERT_TRUE(read.ok()) << ir::render(read.diagnostics, &file, {});
  ASSERT_TRUE(read.recording);
  EXPECT_EQ(read.recording->timeline, timeline);

  // The costs that were simulated are the costs found, apart from what a compound conceals.
  const ir::Schedule& schedule = ir::schedule_of(*read.schedule);
  const Costs found = recorded_costs(schedule, *read.recording);
  EXPECT_EQ(found.unit, "ms");
  const auto near = [](double left, double right) { return std::abs(left - right) < 1e-9; };
  bool alone[64][2] = {};  // F, and some backward, outside of compounds
  for (const ir::Row& row : schedule.rows) {
    for (const ir::Action& action : row) {
      if (!ir::is_compute(action.kind()) || action.is_compound()) continue;
      alone[action.parts()[0].stage()][action.kind() != ir::ActionKind::kForward] = true;
    }
  }
  const bool backward = ir::has_backward(schedule);
  for (int stage = 0; stage < schedule.placement.num_stages(); ++stage) {
    if (alone[stage][0]) {
      EXPECT_TRUE(near(found.forward.at(stage), costs.forward.at(stage)));
    }
    if (!backward || !alone[stage][1]) continue;
    EXPECT_TRUE(near(found.backward_input.at(stage), costs.backward_input.at(stage))) << stage;
    EXPECT_TRUE(near(found.backward_weight.at(stage), costs.backward_weight.at(stage))) << stage;
  }
  EXPECT_TRUE(near(found.link.latency, 0.125)) << found.link.latency;

  // The recorded run has the figures of the run that was recorded.
  const SimulateResult recorded = recorded_run(read, {.costs = found});
  ASSERT_TRUE(recorded.ok());
  EXPECT_EQ(recorded.simulation->timeline, timeline);
  EXPECT_EQ(recorded.simulation->report.makespan, predicted.simulation->report.makespan);
  EXPECT_EQ(recorded.simulation->report.bubble_rate, predicted.simulation->report.bubble_rate);

  // A run does not drift from itself.
  const Drift drift = drift_of(schedule, timeline, timeline, Baseline::kPredicted);
  EXPECT_TRUE(drift.outliers.empty());
  EXPECT_EQ(drift.straggler, std::nullopt);
  for (const double one : drift.slowness) EXPECT_EQ(one, 1);
}

INSTANTIATE_TEST_SUITE_P(All, RecordedRun,
                         testing::ValuesIn(schedules::all_schedules().begin(),
                                           schedules::all_schedules().end()),
                         [](const auto& parameter) {
                           std::string name(parameter.param->name);
                           std::erase_if(name, [](char letter) { return !std::isalnum(letter); });
                           return name;
                         });

TEST(Recorded, ASlowRankIsAStraggler) {
  const Costs costs{.unit = "ms", .link = {.latency = 0.1}};
  const CompileResult compiled = program_of(*schedules::find_schedule("1F1B"), costs);
  const SimulateResult even = simulate(compiled, {.costs = costs}),
                       slow = simulate(compiled, {.costs = costs, .slow = {{2, 1.5}}});
  ASSERT_TRUE(even.ok() && slow.ok());
  const ir::Schedule& schedule = ir::schedule_of(*compiled.schedule);
  for (const Baseline baseline : {Baseline::kPredicted, Baseline::kMedianOfKind}) {
    const Drift drift =
        drift_of(schedule, even.simulation->timeline, slow.simulation->timeline, baseline);
    ASSERT_EQ(drift.straggler, 2);
    EXPECT_NEAR(drift.slowness[2], 1.5, 1e-9);
    EXPECT_NEAR(drift.slowness[1], 1, 1e-9);
    // B takes 2, so its 8 actions on rank 2 are 1 late each, and come before F, which are 0.5 late.
    ASSERT_EQ(drift.outliers.size(), 10u);
    for (size_t one = 0; one < 10; ++one) {
      EXPECT_EQ(drift.outliers[one].rank, 2);
      EXPECT_NEAR(drift.outliers[one].measured - drift.outliers[one].predicted, one < 8 ? 1 : 0.5,
                  1e-9);
    }
  }
  for (const Drift::Group& group : drift_of(schedule, even.simulation->timeline,
                                            slow.simulation->timeline, Baseline::kPredicted)
                                       .groups) {
    const double factor = group.rank == 2 && ir::is_compute(group.kind) ? 1.5 : 1;
    EXPECT_NEAR(group.measured, factor * group.predicted, 1e-9);
  }
}

TEST(Recorded, ASingleLateActionMakesNoStraggler) {
  const CompileResult compiled = program_of(*schedules::find_schedule("1F1B"), {});
  const SimulateResult run = simulate(compiled, {});
  ASSERT_TRUE(run.ok());
  const ir::Schedule& schedule = ir::schedule_of(*compiled.schedule);
  ir::Timeline late = run.simulation->timeline;
  for (size_t step = 0; step < schedule.rows[1].size(); ++step) {
    if (schedule.rows[1][step] == ir::Action(ir::ActionKind::kBackward, 1, 7))
      late.at(1, step).end += 1000;
  }
  const Drift drift = drift_of(schedule, run.simulation->timeline, late, Baseline::kMedianOfKind);
  EXPECT_EQ(drift.straggler, std::nullopt);
  ASSERT_EQ(drift.outliers.size(), 1u);
  EXPECT_EQ(drift.outliers[0].rank, 1);
}

// With stages that differ, a prediction that knows it is the better judge.
TEST(Recorded, AStageWithMoreWorkIsNoStragglerIfThatWasPredicted) {
  const PerStage times({1, 1, 1, 2});
  const Costs costs{
      .unit = "ms", .forward = times, .backward_input = times, .backward_weight = times};
  const CompileResult compiled = program_of(*schedules::find_schedule("1F1B"), costs);
  const SimulateResult run = simulate(compiled, {.costs = costs});
  ASSERT_TRUE(run.ok());
  const ir::Schedule& schedule = ir::schedule_of(*compiled.schedule);
  const ir::Timeline& timeline = run.simulation->timeline;
  EXPECT_EQ(drift_of(schedule, timeline, timeline, Baseline::kPredicted).straggler, std::nullopt);
  EXPECT_EQ(drift_of(schedule, timeline, timeline, Baseline::kMedianOfKind).straggler, 3);
}

// Without a prediction, a rank with several stages is slow only if all of them are.
TEST(Recorded, AStageWithMoreWorkBesideOthersIsNoStraggler) {
  const PerStage times({1, 1, 1, 1, 1, 1, 1, 2});
  const Costs even{.unit = "ms"},
      heavy{.unit = "ms", .forward = times, .backward_input = times, .backward_weight = times};
  const CompileResult compiled = program_of(*schedules::find_schedule("Interleaved1F1B"), heavy);
  const ir::Schedule& schedule = ir::schedule_of(*compiled.schedule);
  ASSERT_EQ(schedule.placement.num_stages(), 8);
  const auto straggler_of = [&](const Costs& costs, const std::map<int, double>& slow) {
    const SimulateResult run =
        simulate(compiled, {.costs = costs, .slow = {slow.begin(), slow.end()}});
    const ir::Timeline& timeline = run.simulation->timeline;
    return drift_of(schedule, timeline, timeline, Baseline::kMedianOfKind).straggler;
  };
  EXPECT_EQ(straggler_of(heavy, {}), std::nullopt);
  EXPECT_EQ(straggler_of(even, {{3, 1.5}}), 3);
  EXPECT_EQ(straggler_of(heavy, {{3, 1.5}}), 3);
  EXPECT_EQ(straggler_of(heavy, {{0, 1.5}}), 0);
}

TEST(Recorded, ASlowLinkHasItsOwnLatencyAndGroup) {
  Costs costs{.unit = "ms", .link = {.latency = 0.25}};
  costs.links[{1, 2}] = {.latency = 3};
  const CompileResult compiled = program_of(*schedules::find_schedule("1F1B"), costs);
  const SimulateResult fast =
                           simulate(compiled, {.costs = {.unit = "ms", .link = {.latency = 0.25}}}),
                       slow = simulate(compiled, {.costs = costs});
  ASSERT_TRUE(fast.ok() && slow.ok());
  const ir::Schedule& schedule = ir::schedule_of(*compiled.schedule);
  const Costs found = recorded_costs(schedule, {"ms", slow.simulation->timeline});
  EXPECT_EQ(found.links.size(), 6u);
  for (const auto& [ranks, link] : found.links)
    EXPECT_NEAR(*link.latency, ranks == std::pair(1, 2) ? 3 : 0.25, 1e-9);
  EXPECT_NEAR(found.link.latency, 0.25, 1e-9);
  int deviating = 0;
  for (const Drift::Group& group : drift_of(schedule, fast.simulation->timeline,
                                            slow.simulation->timeline, Baseline::kPredicted)
                                       .groups) {
    if (std::abs(group.measured - group.predicted) < 1e-9) continue;
    ++deviating;
    EXPECT_EQ(group.kind, ir::ActionKind::kSendF);
    EXPECT_EQ(std::pair(group.rank, group.to), std::pair(1, 2));
  }
  EXPECT_EQ(deviating, 1);
}

TEST(Recorded, TimesAreConvertedToTheUnitOfTheCosts) {
  const CompileResult compiled = program_of(*schedules::find_schedule("GPipe"), {});
  const SimulateResult run = simulate(compiled, {});
  const ir::Source file = recording_file(compiled, run.simulation->timeline);
  const CompileResult read = compile({.source = &file, .depth = Depth::kVerify});
  ASSERT_TRUE(read.ok());
  const auto makespan_in = [&](const std::string& unit) {
    const SimulateResult result = recorded_run(read, {.costs = {.unit = unit}});
    return result.ok() ? result.simulation->report.makespan : -1;
  };
  EXPECT_EQ(makespan_in("ms"), run.simulation->report.makespan);
  EXPECT_NEAR(makespan_in("s"), 1e-3 * run.simulation->report.makespan, 1e-12);
  EXPECT_EQ(makespan_in("ticks"), -1);
}

TEST(Recorded, ComputesKeepTheirTimesWithoutCommunication) {
  const CompileResult compiled = program_of(*schedules::find_schedule("ZBV"), {});
  const SimulateResult run = simulate(compiled, {.costs = {.link = {.latency = 1}}});
  const ir::Source file = recording_file(compiled, run.simulation->timeline);
  const CompileResult order =
      compile({.source = &file, .level = ir::Level::kComputeOnly, .depth = Depth::kVerify});
  ASSERT_TRUE(order.ok() && order.recording);
  const ir::Rows& rows = ir::schedule_of(*order.schedule).rows;
  const ir::Rows& all = ir::schedule_of(*compiled.schedule).rows;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    size_t step = 0;
    for (size_t at = 0; at < all[rank].size(); ++at) {
      if (!ir::is_compute(all[rank][at].kind())) continue;
      ASSERT_EQ(rows[rank][step], all[rank][at]);
      EXPECT_EQ(order.recording->timeline.at(rank, step++), run.simulation->timeline.at(rank, at));
    }
    EXPECT_EQ(step, rows[rank].size());
  }
  // Another order has not been recorded.
  const CompileResult merged = compile({.source = &file,
                                        .policies = {.merge_backward = true},
                                        .level = ir::Level::kComputeOnly,
                                        .depth = Depth::kVerify});
  ASSERT_TRUE(merged.ok());
  EXPECT_FALSE(merged.recording);
  EXPECT_TRUE(merged.lost_recording);
}

}  // namespace
}  // namespace pipewright::schedule
