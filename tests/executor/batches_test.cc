// How a batch becomes microbatches: extra inputs per stage, tensors that are split already, rows,
// shapes that change, and outputs that are merged.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/executor/executor.h"
#include "tests/executor/small_pipelines.h"
#include "tests/support/ranks/ground.h"

namespace pipewright::executor {
namespace {

at::Tensor ones(int64_t rows) { return at::ones({rows}, tests::here()); }
at::Tensor numbers(std::vector<int64_t> values) {
  return at::tensor(values, at::kLong).to(tests::here());
}
std::vector<int64_t> list_of(const at::Tensor& tensor) {
  const at::Tensor host = tensor.cpu();
  return {host.data_ptr<int64_t>(), host.data_ptr<int64_t>() + host.numel()};
}

at::Tensor weight() { return ones(1).set_requires_grad(true); }

// Stages that pass on their first input, times a weight that is 1.
std::map<int, LocalStage> first_of(const ir::Program& program, int rank) {
  return stages_of(program, rank,
                   [w = weight()](int, const Tensors& in) { return Tensors{in[0] * w}; });
}

// The same error on each rank, without the part that says where.
void expect_error(const ir::Program& program, const ExecutorOptions& options,
                  const std::function<void(int rank, Executor&)>& body,
                  const std::string& expected) {
  const int ranks = program.placement.num_ranks();
  for (const std::string& error : errors_of(ranks, [&](int rank, comms::World&world) {
         ExecutorHere executor(program, first_of(program, rank), world, options);
         body(rank, executor);
       })) {
    const size_t start = error.find(": ");
    EXPECT_EQ(start == std::string::npos ? error : error.substr(start + 2), expected) << ranks;
  }
}

const std::string kHow =
    "; for one tensor for all microbatches set nullopt in extra_dims, for one per microbatch use "
    "Batch::per_microbatch";
const std::string kOtherShapes =
    "; before other shapes, call forget_shapes() on all ranks, or set dynamic_shapes";

// ------------------------------------------------------------------------------- extra inputs

// The first and the last stage are on one rank, and need different inputs.
TEST(ExtraInputs, OfSingleStages) {
  const ir::Program program = named("ZBVZeroBubble", 2, 2);
  ASSERT_EQ(program.placement.rank_of(0), program.placement.rank_of(3));
  expect_no_errors(2, [&](int rank, comms::World& world) {
    const at::Tensor positions = numbers({0, 1, 2, 3}), mask = ones(4) * 5, ids = numbers({7, 8});
    const auto stages = stages_of(program, rank, [&](int stage, const Tensors& in) {
      EXPECT_EQ(in.size(), stage == 0 || stage == 3 ? 3u : 2u) << stage;
      EXPECT_EQ(in.at(1).sizes(), at::IntArrayRef({2})) << "the extra input of all stages";
      if (stage == 0) {
        EXPECT_EQ(in.at(2).scalar_type(), at::kLong);
      }
      if (stage == 3) {
        EXPECT_EQ(list_of(in.at(2)), (std::vector<int64_t>{7, 8}));
      }
      at::Tensor sum = in[0] * weight();
      for (size_t i = 1; i < in.size(); ++i) sum = sum + in[i];
      return Tensors{sum};
    });
    ExecutorHere executor(program, stages, world,
                          {.loss = sum_of, .extra_of_dims = {{3, {std::nullopt}}}});
    // Stages that are on other ranks are ignored, as inputs and targets are.
    const Batch batch = {
        .inputs = {ones(4)}, .extra = {mask}, .extra_of = {{0, {positions}}, {3, {ids}}, {1, {}}}};
    for (int step = 0; step < 2; ++step) {
      const StepResult result = executor.step(batch, true);
      if (rank != program.placement.rank_of(3)) continue;
      const at::Tensor expected = ones(4) + 4 * mask + positions + numbers({7, 8, 7, 8});
      EXPECT_TRUE(at::equal(result.outputs.at(0), expected));
    }
  });
}

// out = in[0] + sum of c(stage, i) in[i], so an extra input has the gradient c(stage, i) / 2 for
// two microbatches, summed over the stages that it goes to.
TEST(ExtraInputs, OfSingleStagesGetTheirGradients) {
  const auto factor = [](int stage, size_t i) { return 1 + 10 * stage + static_cast<int>(i); };
  const ir::Program program = named("ZBVZeroBubble", 2, 2);
  expect_no_errors(2, [&](int rank, comms::World& world) {
    const auto stages = stages_of(program, rank, [&](int stage, const Tensors& in) {
      at::Tensor sum = in[0];
      for (size_t i = 1; i < in.size(); ++i) sum = sum + factor(stage, i) * in[i];
      return Tensors{sum};
    });
    const auto leaf = [] { return ones(4).set_requires_grad(true); };
    const at::Tensor all = leaf(), first = leaf(), last = leaf();
    ExecutorHere executor(program, stages, world, {.loss = sum_of});
    executor.step({.inputs = {ones(4)},
                   .extra = {ones(4), all},
                   .extra_of = {{0, {first}}, {3, {ones(4), last}}}});
    const bool has_ends = rank == program.placement.rank_of(0);
    const int of_all = has_ends ? factor(0, 2) + factor(3, 2) : factor(1, 2) + factor(2, 2);
    EXPECT_TRUE(at::equal(all.grad(), of_all * ones(4) / 2));
    EXPECT_EQ(first.grad().defined(), has_ends);
    if (!has_ends) return;
    EXPECT_TRUE(at::equal(first.grad(), factor(0, 3) * ones(4) / 2));
    EXPECT_TRUE(at::equal(last.grad(), factor(3, 4) * ones(4) / 2));
  });
}

// Offsets of sequences in each microbatch: of different lengths, so that no tensor could be split.
TEST(ExtraInputs, OnePerMicrobatch) {
  for (const int ranks : {1, 2}) {
    const ir::Program program = named("1F1B", ranks, 2);
    expect_no_errors(ranks, [&](int rank, comms::World& world) {
      std::vector<std::vector<int64_t>> offsets;
      const auto stages = stages_of(program, rank, [&](int stage, const Tensors& in) {
        EXPECT_EQ(in.size(), stage == 0 ? 4u : 3u);
        offsets.push_back(list_of(in.back()));
        return Tensors{in[0] * in[1] * weight()};
      });
      ExecutorHere executor(program, stages, world,
                            {.loss = [](const Tensors& out, const Tensors& targets) {
                              EXPECT_EQ(targets.at(1).item<int64_t>(), targets[0].numel());
                              return out[0].sum() + targets[0].sum();
                            }});
      const std::vector<Tensors> per_microbatch = {{numbers({0, 3, 5})}, {numbers({0, 2})}};
      std::map<int, std::vector<Tensors>> extra_of;
      for (int stage = 0; stage < ranks; ++stage) extra_of[stage] = per_microbatch;
      executor.step(
          {.inputs = {ones(4)},
           .extra = {ones(4)},
           .targets = {ones(4)},
           .extra_of = {{0, {ones(4)}}},
           .per_microbatch = {.targets = {{numbers({2})}, {numbers({2})}}, .extra_of = extra_of}});
      const std::vector<std::vector<int64_t>> expected = {{0, 3, 5}, {0, 2}};
      EXPECT_EQ(offsets, expected);
    });
  }
}

// A mask that this batch does not need.
TEST(ExtraInputs, MayBeUndefined) {
  const ir::Program program = named("1F1B", 2, 2);
  expect_no_errors(2, [&](int rank, comms::World& world) {
    const auto stages = stages_of(program, rank, [](int, const Tensors& in) {
      EXPECT_FALSE(in.at(1).defined());
      return Tensors{in[0] * in[2] * weight()};
    });
    ExecutorHere executor(program, stages, world, {.loss = sum_of});
    executor.step({.inputs = {ones(4)}, .extra = {at::Tensor(), ones(4)}});
  });
}

TEST(ExtraInputs, OfAStageThatDoesNotExist) {
  const ir::Program program = named("1F1B", 2, 2);
  for (const Batch& batch :
       {Batch{.inputs = {ones(2)}, .extra_of = {{2, {ones(2)}}}},
        Batch{.inputs = {ones(2)}, .per_microbatch = {.extra_of = {{2, {{ones(2)}}}}}}}) {
    expect_error(
        program, {.loss = sum_of}, [&](int, Executor& executor) { executor.step(batch); },
        "extra_of: expected a stage from 0 to 1, got 2");
  }
  const Microbatches split = {.inputs = {{ones(1)}, {ones(1)}},
                              .extra_of = {{-1, {{ones(1)}, {ones(1)}}}}};
  expect_error(
      program, {.loss = sum_of}, [&](int, Executor& executor) { executor.step(split); },
      "extra_of: expected a stage from 0 to 1, got -1");
}

TEST(ExtraInputs, AnotherNumberOfMicrobatches) {
  const ir::Program program = named("1F1B", 2, 2);
  const std::vector<Tensors> three(3, Tensors{ones(2)});
  const auto step = [](const Batch& batch) {
    return [batch](int, Executor& executor) { executor.step(batch); };
  };
  const Tensors inputs = {ones(2)};
  expect_error(program, {.loss = sum_of},
               step({.inputs = inputs, .per_microbatch = {.inputs = three}}),
               "inputs: expected 2 microbatches, got 3");
  expect_error(program, {.loss = sum_of},
               step({.inputs = inputs, .per_microbatch = {.extra = three}}),
               "extra inputs: expected 2 microbatches, got 3");
  expect_error(program, {.loss = sum_of},
               step({.inputs = inputs, .per_microbatch = {.extra_of = {{1, three}}}}),
               "stage 1: extra inputs: expected 2 microbatches, got 3");
}

// -------------------------------------------------------------------------------------- rows

// Offsets are no rows. The first and the last rank know how many there are, a middle one does not,
// and a rank of its own knows only what it has.
TEST(Rows, OffsetsAreNotSplit) {
  // Made by each rank, on its device.
  const auto offsets = [] { return numbers({0, 3, 5, 7, 10}); };
  const auto batch = [&] { return Batch{.inputs = {ones(4)}, .extra = {offsets()}}; };
  expect_error(
      named("1F1B", 1, 2), {.loss = sum_of},
      [&](int, Executor& executor) { executor.step(batch()); },
      "extra input 0: expected size 4 along dimension 0, the rows of input 0, got 5" + kHow);
  for (const int with_offsets : {0, 1, 2}) {
    const std::string on_rank = with_offsets == 0 ? "" : " on rank 0";
    expect_error(
        named("1F1B", 3, 2), {.loss = sum_of},
        [&](int rank, Executor& executor) {
          for (int good = 0; good < 2; ++good)
            executor.eval({.inputs = {ones(6)}, .extra = {ones(6)}});
          executor.step({.inputs = {ones(4)},
                         .extra = rank == with_offsets ? Tensors{offsets()} : Tensors{}});
        },
        "extra input 0: expected size 4 along dimension 0, the rows of input 0" + on_rank +
            ", got 5" + kHow);
  }
  // Both ways to say what they are.
  for (const int ranks : {1, 3}) {
    const ir::Program program = named("1F1B", ranks, 2);
    expect_no_errors(ranks, [&](int rank, comms::World& world) {
      ExecutorHere shared(program, first_of(program, rank), world,
                          {.loss = sum_of, .extra_dims = {std::nullopt}});
      shared.step(batch());
      ExecutorHere executor(program, first_of(program, rank), world, {.loss = sum_of});
      executor.step({.inputs = {ones(4)},
                     .per_microbatch = {.extra = {{numbers({0, 3, 5})}, {numbers({0, 2, 5})}}}});
    });
  }
}

TEST(Rows, OfInputsAndTargets) {
  const LossFunction loss = [](const Tensors& out, const Tensors& targets) {
    return out[0].sum() + targets[0].sum();
  };
  const auto batch = [] { return Batch{.inputs = {ones(4)}, .targets = {ones(6)}}; };
  const auto step = [&](int, Executor& executor) { executor.step(batch()); };
  const std::string how =
      "; for one tensor for all microbatches set nullopt in target_dims, for one per microbatch "
      "use Batch::per_microbatch";
  expect_error(named("1F1B", 1, 2), {.loss = loss}, step,
               "target 0: expected size 4 along dimension 0, the rows of input 0, got 6" + how);
  expect_error(
      named("1F1B", 2, 2), {.loss = loss}, step,
      "target 0: expected size 4 along dimension 0, the rows of input 0 on rank 0, got 6" + how);
  // A loss that takes none ignores them.
  expect_no_errors(2, [&](int rank, comms::World& world) {
    const ir::Program program = named("1F1B", 2, 2);
    ExecutorHere executor(program, first_of(program, rank), world, {.loss = sum_of});
    executor.step(batch());
  });
}

// Training goes on with the next batch, and an evaluation may have other rows than training.
TEST(Rows, DifferFromStepToStep) {
  for (const int ranks : {1, 2}) {
    const ir::Program program = named("1F1B", ranks, 2);
    expect_no_errors(ranks, [&](int rank, comms::World& world) {
      ExecutorHere executor(program, first_of(program, rank), world,
                            {.loss = sum_of, .dynamic_shapes = true});
      for (const int64_t rows : {4, 6, 3}) {
        const Batch batch = {.inputs = {ones(rows)}, .extra = {ones(rows)}};
        executor.step(batch);
        EXPECT_THROW(executor.step({.inputs = {ones(rows)}, .extra = {ones(rows + 1)}}),
                     BatchError);
        executor.eval({.inputs = {ones(rows + 2)}, .extra = {ones(rows + 2)}});
      }
    });
  }
}

TEST(Rows, WhatHasNoneSaysHowToPassIt) {
  const ir::Program program = named("1F1B", 2, 2);
  const auto step = [](const at::Tensor& extra) {
    return [extra](int rank, Executor& executor) {
      executor.step({.inputs = {ones(2)}, .extra = rank == 1 ? Tensors{extra} : Tensors{}});
    };
  };
  expect_error(program, {.loss = sum_of}, step(at::ones({}, tests::here())),
               "extra input 0 with 0 dimensions cannot be split along dimension 0" + kHow);
  expect_error(program, {.loss = sum_of}, step(ones(1)),
               "extra input 0: expected size at least 2 along dimension 0, one per microbatch, got "
               "1" +
                   kHow);
}

// ------------------------------------------------------------------------------------ shapes

// One rank refuses what several do. Evaluations may have other shapes than the last one.
TEST(Shapes, RefusalsSayWhatAllowsThem) {
  for (const int ranks : {1, 2}) {
    const ir::Program program = named("1F1B", ranks, 2);
    expect_error(
        program, {.loss = sum_of},
        [&](int, Executor& executor) {
          executor.step({.inputs = {ones(6)}});
          executor.step({.inputs = {ones(4)}});
        },
        "input 0 of microbatch 0: expected Float [3] as in the first step, got Float [2]" +
            kOtherShapes);
    expect_error(
        program, {.loss = sum_of},
        [&](int, Executor& executor) {
          executor.step({.inputs = {ones(8)}, .extra_of = {{0, {ones(8)}}}});
          executor.step({.inputs = {ones(8)}, .extra_of = {{0, {ones(8), ones(8)}}}});
        },
        "stage 0: extra inputs of microbatch 0: expected 1 tensors as in the first step, "
        "got 2" +
            kOtherShapes);
    for (const bool dynamic : {false, true}) {
      expect_no_errors(ranks, [&](int rank, comms::World& world) {
        ExecutorHere executor(program, first_of(program, rank), world,
                              {.loss = sum_of, .dynamic_shapes = dynamic});
        for (const int64_t rows : {8, 6, 4}) {
          executor.step({.inputs = {ones(rows)}});
          executor.eval({.inputs = {ones(rows + 1)}, .extra = {ones(rows + 1)}});
          executor.eval({.inputs = {ones(rows - 2)}, .extra = {ones(rows - 2)}});
          if (!dynamic) executor.forget_shapes();
        }
      });
    }
  }
}

// ----------------------------------------------------------------------------------- outputs

// A model that computes its own loss: one per microbatch.
TEST(Outputs, ScalarsAreOnePerMicrobatch) {
  for (const int ranks : {1, 2}) {
    const ir::Program program = named("1F1B", ranks, 2);
    expect_no_errors(ranks, [&](int rank, comms::World& world) {
      const auto stages = stages_of(program, rank, [&](int stage, const Tensors& in) {
        const at::Tensor out = in[0] * weight();
        return Tensors{stage == ranks - 1 ? out.sum() : out};
      });
      ExecutorHere executor(program, stages, world,
                            {.loss = [](const Tensors& out) { return out[0]; }});
      const at::Tensor inputs = at::arange(4.0, tests::here());
      for (const StepResult& result :
           {executor.eval({.inputs = {inputs}}), executor.step({.inputs = {inputs}}, true)}) {
        if (rank != ranks - 1) continue;
        EXPECT_TRUE(at::equal(result.outputs.at(0).cpu(), at::tensor({1.f, 5.f})));
        EXPECT_EQ(result.losses.at(1).item<float>(), 5);
      }
    });
  }
}

TEST(Outputs, MayBeUndefined) {
  const ir::Program program = named("1F1B", 1, 2);
  expect_no_errors(1, [&](int rank, comms::World& world) {
    const auto stages = stages_of(program, rank, [](int, const Tensors& in) {
      return Tensors{at::Tensor(), in[0]};
    });
    ExecutorHere executor(program, stages, world,
                          {.loss = [](const Tensors& out) { return out[1].sum(); }});
    const StepResult result = executor.eval({.inputs = {ones(4)}});
    EXPECT_FALSE(result.outputs.at(0).defined());
    EXPECT_EQ(result.outputs.at(1).numel(), 4);
  });
}

// All ranks learn that the last one cannot return its outputs.
TEST(Outputs, ThatCannotBeMergedEndTheStepOnAllRanks) {
  const ir::Program program = named("1F1B", 2, 2);
  for (const std::string& error : errors_of(2, [&](int rank, comms::World&world) {
         ExecutorHere executor(program, first_of(program, rank), world,
                               {.loss = sum_of, .output_dims = {1}});
         executor.eval({.inputs = {ones(4)}});
         executor.confirm();
       })) {
    EXPECT_TRUE(
        error.starts_with("rank 1, step 0: output 0 cannot be concatenated along dimension 1: "))
        << error;
  }
}

TEST(Outputs, AreAsManyInEachMicrobatch) {
  const ir::Program program = named("1F1B", 1, 2);
  expect_no_errors(1, [&](int rank, comms::World& world) {
    const auto stages = stages_of(program, rank, [](int, const Tensors& in) {
      return Tensors(static_cast<size_t>(in[0].numel()), in[0]);
    });
    ExecutorHere executor(program, stages, world, {.loss = sum_of});
    try {
      executor.eval({.inputs = {ones(5)}});
      ADD_FAILURE() << "expected an error";
    } catch (const StepError& error) {
      EXPECT_EQ(std::string(error.what())
                    .find("rank 0, step 0: outputs: expected 3 in each "
                          "microbatch, as in the first one, got 2"),
                0u)
          << error.what();
    }
  });
}

}  // namespace
}  // namespace pipewright::executor
