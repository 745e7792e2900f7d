// Words against compute orders: conversion, memory, and replay against the simulator.
#include "pipewright/schedule/search/words.h"

#include <gtest/gtest.h>

#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/replay.h"
#include "pipewright/schedules/registry.h"
#include "tests/schedule/search/random_problem.h"
#include "tests/support/catalogue/catalogue.h"

namespace pipewright::schedule::search {
namespace {

Report simulated(const ir::ComputeOrder& order, const Costs& costs) {
  const CompileResult compiled = compile({.source = ir::AnySchedule(order),
                                          .level = ir::Level::kComputeOnly,
                                          .depth = Depth::kVerify});
  return simulate(compiled, {.costs = costs}).simulation.value().report;
}

// 1F1B has 1 activation on the last rank, P on the first, and (M + P - 1)(F + B) of cost.
TEST(Words, Of1F1B) {
  const int ranks = 4, microbatches = 8;
  const ir::ComputeOrder order =
      schedules::make_order(*schedules::find_schedule("1F1B"),
                            {.ranks = ranks, .stages = ranks, .microbatches = microbatches});
  const Problem problem = make_problem(order.placement, microbatches,
                                       {.forward = 3,
                                        .backward_input = 2,
                                        .backward_weight = 2,
                                        .activation_bytes = 1,
                                        .weight_input_bytes = 1},
                                       {.activations = 4}, /*splits_backward=*/false);
  const Words words = words_of(problem, order);
  EXPECT_EQ(peak_memory(problem, words), (std::vector<Memory>{4, 3, 2, 1}));
  EXPECT_EQ(problem.memory_limits, std::vector<Memory>(4, 4));
  EXPECT_TRUE(fits_memory(problem, words));
  Replay replay(problem);
  ASSERT_TRUE(replay.run(words));
  EXPECT_EQ(replay.makespan(), (microbatches + ranks - 1) * (3 + 4));
  EXPECT_EQ(order_of(problem, words, order.name).rows, order.rows);
}

// Every schedule of the catalogue: same cost and makespan as the simulator computes, or less, since
// I sends its gradient before W where a B sends it at its end.
TEST(Words, ReplayAgreesWithTheSimulator) {
  const Costs costs = {
      .forward = 10, .backward_input = 11, .backward_weight = 7, .link = {.latency = 1}};
  for (const schedules::ScheduleSpec* spec : tests::schedules_of_one_replica()) {
    for (const int microbatches : {4, 8, 13}) {
      const schedules::Shape shape = {
          .ranks = 4, .stages = schedules::default_stages(*spec, 4), .microbatches = microbatches};
      if (schedules::shape_error(*spec, shape)) continue;
      SCOPED_TRACE(std::string(spec->name) + " " + std::to_string(microbatches));
      const ir::ComputeOrder order = schedules::make_order(*spec, shape);
      const Problem problem = make_problem(order.placement, microbatches, costs, {});
      const Words words = words_of(problem, order);
      Replay replay(problem);
      ASSERT_TRUE(replay.run(words));
      const Report expected = simulated(order, costs);
      EXPECT_LE(static_cast<double>(replay.cost()) * problem.tick, expected.cost + 1e-9);

      // As a compute order of F, I and W again, simulated: the same to the unit.
      const ir::ComputeOrder split = order_of(problem, words, "");
      const Report report = simulated(split, costs);
      EXPECT_NEAR(static_cast<double>(replay.cost()) * problem.tick, report.cost, 1e-9);
      EXPECT_NEAR(static_cast<double>(replay.makespan()) * problem.tick, report.makespan, 1e-9);
      for (size_t rank = 0; rank < report.ranks.size(); ++rank)
        EXPECT_EQ(peak_memory(problem, words)[rank], report.ranks[rank].peak_activations.amount);
    }
  }
}

TEST(Words, ReplayReportsADeadlock) {
  const Problem problem = make_problem(ir::Placement::loop(2, 2), 1, {}, {});
  const Word first = {letter(0, Pass::kForward), letter(0, Pass::kInput), letter(0, Pass::kWeight)};
  const Word second = {letter(1, Pass::kForward), letter(1, Pass::kInput),
                       letter(1, Pass::kWeight)};
  Replay replay(problem);
  EXPECT_FALSE(replay.run({{first[1], first[0], first[2]}, second}));
  EXPECT_TRUE(replay.run({first, second}));
}

// One microbatch at a time needs the least memory: the limit that it meets, and no lower one.
TEST(Words, LeastMemory) {
  std::mt19937 random(1);
  for (int run = 0; run < 200; ++run) {
    const Problem problem = tests::random_problem(&random);
    const Words words = one_at_a_time(problem);
    Replay replay(problem);
    EXPECT_TRUE(replay.run(words));
    EXPECT_TRUE(fits_memory(problem, words));
    EXPECT_EQ(peak_memory(problem, words), least_memory(problem));
  }
  // All stages of a rank hold one microbatch at once: 2 + 3 on rank 0, and 1 + 4 on rank 1, where
  // stage 1 keeps more for W than F saved.
  Problem problem;
  problem.placement = ir::Placement::v(2, 4);
  problem.num_microbatches = 3;
  problem.memory_limits = {kNoLimit, kNoLimit};
  for (const Memory activation : {2, 1, 4, 3})
    problem.stages.push_back({1, 1, 1, 0, 0, activation, activation == 1 ? 6 : 1});
  EXPECT_EQ(least_memory(problem), (std::vector<Memory>{5, 6}));
}

}  // namespace
}  // namespace pipewright::schedule::search
