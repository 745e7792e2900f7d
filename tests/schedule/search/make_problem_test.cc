// Costs as integers.
#include <gtest/gtest.h>

#include <cmath>

#include "pipewright/schedule/problem/problem.h"

namespace pipewright::schedule::search {
namespace {

TEST(MakeProblem, UsesTheDecimalsOfTheCosts) {
  const Problem problem = make_problem(ir::Placement::loop(8, 8), 24,
                                       {.forward = 18.522,
                                        .backward_input = 18.086,
                                        .backward_weight = 9.337,
                                        .link = {.latency = 0.601}},
                                       {.activations = 8});
  EXPECT_EQ(problem.tick, 0.001);
  EXPECT_EQ(problem.work(0), (StageWork{18522, 18086, 9337, 601, 0, 10, 5}));
  EXPECT_EQ(problem.work(3), (StageWork{18522, 18086, 9337, 601, 601, 10, 5}));
  EXPECT_EQ(problem.work(7), (StageWork{18522, 18086, 9337, 0, 601, 10, 5}));
  EXPECT_EQ(problem.memory_limits, std::vector<Memory>(8, 80));
}

TEST(MakeProblem, KeepsTwelveDigitsOfOtherCosts) {
  for (const double scale : {1e-12, 1e-3, 1.0, 1e9, 1e17}) {
    const double forward = scale / 3, weight = scale / 7;
    const Problem problem =
        make_problem(ir::Placement::loop(2, 2), 4,
                     {.forward = forward, .backward_input = scale, .backward_weight = weight}, {});
    EXPECT_NEAR(static_cast<double>(problem.work(0).forward) * problem.tick, forward,
                1e-11 * scale);
    EXPECT_NEAR(static_cast<double>(problem.work(0).backward_weight) * problem.tick, weight,
                1e-11 * scale);
    EXPECT_LT(problem.work(0).backward_input, Ticks{10'000'000'000'000});
  }
}

TEST(MakeProblem, TakesScalesAndLinks) {
  Costs costs = {.forward = 2,
                 .rank_scale = {1, 3},
                 .microbatch_scale = {1, 0.5, 2, 1},
                 .link = {.latency = 1, .bandwidth = 10},
                 .output_bytes = 20,
                 .input_gradient_bytes = 5};
  costs.links[{1, 0}] = {.latency = 7, .bandwidth = 5};
  const Problem problem = make_problem(ir::Placement::v(2, 4), 4, costs, {});
  EXPECT_EQ(problem.tick, 0.1);
  EXPECT_EQ(problem.work(0).forward, 20);
  EXPECT_EQ(problem.work(1).forward, 60);
  EXPECT_EQ(problem.scaled(problem.work(1).forward, 1), 30);
  EXPECT_EQ(problem.work(0).output_transfer, 30);    // 1 + 20 / 10
  EXPECT_EQ(problem.work(1).output_transfer, 0);     // on one rank
  EXPECT_EQ(problem.work(2).output_transfer, 110);   // 7 + 20 / 5
  EXPECT_EQ(problem.work(1).gradient_transfer, 80);  // 7 + 5 / 5
  EXPECT_EQ(problem.work(3).gradient_transfer, 15);  // 1 + 5 / 10
}

TEST(MakeProblem, JoinsTheBackward) {
  const Problem problem =
      make_problem(ir::Placement::loop(2, 2), 4, {.backward_input = 2, .backward_weight = 3},
                   {.activations = 1}, /*splits_backward=*/false);
  EXPECT_EQ(problem.work(0), (StageWork{1, 5, 0, 0, 0, 1, 0}));
}

TEST(MakeProblem, CountsActivationsPerRank) {
  const auto limits = [](ir::Placement placement, double activations) {
    return make_problem(placement, 4, {}, {.activations = activations}).memory_limits;
  };
  // A stage's activation is 10 units, of which I frees 5.
  EXPECT_EQ(limits(ir::Placement::v(2, 4), 2.5), (std::vector<Memory>{50, 50}));
  EXPECT_EQ(limits(ir::Placement::v(2, 4), 2.49), (std::vector<Memory>{49, 49}));
  EXPECT_EQ(limits(ir::Placement::loop(2, 3), 2), (std::vector<Memory>{40, 20}));
  // With sizes, those of the rank's own stages.
  const Costs costs = {.activation_bytes = PerStage({3, 4, 5, 6}), .weight_input_bytes = 2};
  const Problem problem = make_problem(ir::Placement::v(2, 4), 4, costs, {.activations = 2});
  EXPECT_EQ(problem.memory_limits, (std::vector<Memory>{18, 18}));
  EXPECT_EQ(problem.work(3).activation, 6);
  EXPECT_EQ(problem.work(3).weight_input, 2);
  EXPECT_EQ(make_problem(ir::Placement::loop(1, 1), 4, {}, {}).memory_limits[0], kNoLimit);
}

// Half of a time may have one digit more than the time.
TEST(MakeProblem, TimesOfAllMicrobatchesAreExact) {
  const Problem problem = make_problem(
      ir::Placement::loop(1, 1), 4,
      {.forward = 1, .backward_weight = 0.3, .microbatch_scale = {0.5, 1, 0.25, 3}}, {});
  for (int microbatch = 0; microbatch < 4; ++microbatch) {
    const double scale = problem.microbatch_scale[static_cast<size_t>(microbatch)];
    EXPECT_EQ(problem.time(problem.scaled(problem.work(0).forward, microbatch)), scale);
    EXPECT_DOUBLE_EQ(problem.time(problem.scaled(problem.work(0).backward_weight, microbatch)),
                     0.3 * scale);
  }
  std::vector<double> many(200'000);
  for (size_t k = 0; k < many.size(); ++k) many[k] = 1 + 1e-6 * static_cast<double>(k);
  const Problem fine = make_problem(ir::Placement::loop(1, 1), 200'000,
                                    {.forward = 1, .microbatch_scale = many}, {});
  EXPECT_NEAR(fine.time(fine.scaled(fine.work(0).forward, 777)), many[777], 1e-6);
}

// As much as a limit is for fits, however many digits the sizes have.
TEST(MakeProblem, WhatFitsInMemoryFitsInTheProblem) {
  const int microbatches = 64;
  for (const double size : {17179869184.0, 16e9, 1e9 / 3, 0.7}) {
    for (const double share : {0.5, 1.0 / 3, 1e-3}) {
      const Costs costs = {.activation_bytes = size, .weight_input_bytes = share * size};
      for (const double count : {1.0, 8.0, 63.0}) {
        for (const MemoryBudget& memory :
             {MemoryBudget{.activations = count}, MemoryBudget{.bytes = count * size}}) {
          const Problem problem =
              make_problem(ir::Placement::loop(8, 8), microbatches, costs, memory);
          const StageWork& work = problem.work(0);
          const Memory limit = problem.memory_limit(0);
          EXPECT_LE(static_cast<Memory>(count) * work.activation, limit) << size << " " << share;
          EXPECT_LE(std::lround(count / share) * work.weight_input, limit) << size << " " << share;
          // One more does not fit.
          EXPECT_GT(static_cast<Memory>(count + 1) * work.activation, limit);
        }
      }
    }
  }
}

// What is kept for W is 10^13 times what F keeps: one whole microbatch and many Fs fit.
TEST(MakeProblem, SizesOfVeryDifferentOrders) {
  const Problem problem = make_problem(
      ir::Placement::loop(2, 2), 6,
      {.activation_bytes = 1, .weight_input_bytes = PerStage({1, 1e13})}, {.activations = 4});
  EXPECT_LE(4 * problem.work(0).activation, problem.memory_limit(0));
  EXPECT_LE(problem.work(0).weight_input + 3 * problem.work(0).activation, problem.memory_limit(0));
}

TEST(MakeProblem, ParametersThatDoNotFit) {
  const Problem problem =
      make_problem(ir::Placement::loop(2, 40), 2, {.activation_bytes = 1, .parameter_bytes = 1e18},
                   {.bytes = 100});
  EXPECT_LT(problem.memory_limit(0), 0);
}

// The plain backward has a decimal that the one with recomputation lacks, and a checkpoint may be
// as large as the activation.
TEST(MakeProblem, BothProblemsOfRecomputationHaveTheSameUnits) {
  const Costs decimals = {.forward = 1,
                          .backward_input = 1.5,
                          .recompute = 0.5,
                          .activation_bytes = 4,
                          .checkpoint_bytes = 1,
                          .weight_input_bytes = 1};
  Costs large = decimals;
  large.activation_bytes = 1;
  large.checkpoint_bytes = 2.5;
  for (const Costs& costs : {decimals, large}) {
    const SavingProblem both =
        make_saving_problem(ir::Placement::loop(2, 2), 4, costs, {.activations = 1});
    EXPECT_EQ(both.plain.tick, both.recomputing.tick);
    EXPECT_EQ(both.plain.memory_unit, both.recomputing.memory_unit);
    EXPECT_EQ(both.plain.memory_limits, both.recomputing.memory_limits);
    EXPECT_EQ(both.plain.time(both.plain.work(0).backward_input), 1.5);
    EXPECT_EQ(both.recomputing.time(both.recomputing.work(0).backward_input), 2);
    EXPECT_EQ(both.plain.size(both.plain.work(0).activation), costs.activation_bytes.at(0));
    EXPECT_EQ(both.recomputing.size(both.recomputing.work(0).activation), 1);
  }
}

TEST(MakeProblem, CountsLiveActivations) {
  const Problem problem = make_problem(ir::Placement::loop(2, 2), 4, {.activation_bytes = 7}, {});
  EXPECT_EQ(problem.work(0).activation, 1);
  EXPECT_EQ(problem.work(0).weight_input, 1);
}

TEST(MakeProblem, SubtractsWhatIsNotActivations) {
  Costs costs = {.output_bytes = 10,
                 .input_gradient_bytes = 20,
                 .activation_bytes = 100.5,
                 .weight_input_bytes = 40,
                 .parameter_bytes = 1000,
                 .gradient_bytes = 500};
  const Problem problem = make_problem(ir::Placement::v(2, 4), 4, costs, {.bytes = 5000});
  EXPECT_EQ(problem.memory_unit, 0.1);
  EXPECT_EQ(problem.work(0).activation, 1005);
  EXPECT_EQ(problem.work(0).weight_input, 400);
  // Rank 0 receives a gradient for stage 0 and an output for stage 3; rank 1 the other way round.
  EXPECT_EQ(problem.memory_limits, std::vector<Memory>(2, 10 * (5000 - 2 * 1500 - 30)));
}

// A list of limits is one of each rank, as if the rank's had been given alone.
TEST(MakeProblemTest, MemoryOfEachRank) {
  const ir::Placement placement = ir::Placement::v(2, 4);
  Costs costs = {.output_bytes = 3,
                 .activation_bytes = PerStage({10, 20, 30, 40}),
                 .weight_input_bytes = 5,
                 .parameter_bytes = PerStage({100, 200, 300, 400}),
                 .shard_bytes = 7,
                 .optimizer_bytes = PerStage({1, 2, 3, 4})};
  const auto limits = [&](const MemoryBudget& memory) {
    return make_problem(placement, 4, costs, memory).memory_limits;
  };
  const std::vector<Memory> both = limits({.bytes = PerRank({5000.0, 900.0})});
  EXPECT_EQ(both[0], limits({.bytes = 5000})[0]);
  EXPECT_EQ(both[1], limits({.bytes = 900})[1]);
  // Stages 1 and 2 on rank 1: parameters, shards, optimizer, and the input of stage 1.
  EXPECT_EQ(both[1], 900 - 200 - 300 - 2 * 7 - 2 - 3 - 3);
  EXPECT_EQ(limits({.activations = PerRank({2.0, 3.0})}), (std::vector<Memory>{100, 150}));
  // Without a budget, the memory that the costs have.
  costs.rank_memory_bytes = {5000, 900};
  EXPECT_EQ(limits(budget_of({}, costs)), both);
  EXPECT_EQ(limits(budget_of({.bytes = 1000}, costs))[1], 1000 - 522);
  ir::Diagnostics diagnostics;
  EXPECT_FALSE(check_budget({.bytes = PerRank({1.0, 2.0, 3.0})}, 2, &diagnostics));
  EXPECT_EQ(diagnostics.kept()[0].message,
            "memory in bytes: expected one number, or 2, one per rank, got 3");
  EXPECT_TRUE(check_budget({.bytes = 1}, 2, &diagnostics));
}

}  // namespace
}  // namespace pipewright::schedule::search
