// What a stage, a loss and a batch may do: all that the model may do without a pipeline, with the
// same losses, gradients and parameters.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <atomic>
#include <memory>

#include "pipewright/autograd/checkpoint.h"
#include "tests/executor/against_plain.h"
#include "tests/executor/small_pipelines.h"
#include "tests/support/ranks/ground.h"

namespace pipewright::executor {
namespace {

constexpr int64_t kRows = 8, kWidth = 4;

// One square weight per stage, and a batch; the rest is for the test to fill in.
PlainModel base(int num_stages, size_t weights_per_stage = 1) {
  Numbers numbers(1);
  PlainModel model;
  for (int stage = 0; stage < num_stages; ++stage) {
    Tensors& weights = model.weights.emplace_back();
    for (size_t i = 0; i < weights_per_stage; ++i)
      weights.push_back((numbers.draw({kWidth, kWidth}) * 0.4).requires_grad_());
  }
  const std::vector<Tensors> weights = model.weights;
  model.forward = [weights](int stage, const Tensors& in) -> Tensors {
    return {in[0].mm(weights[static_cast<size_t>(stage)][0]).tanh()};
  };
  model.loss = [](const Tensors& out, const Tensors& targets) {
    return (out[0] - targets[0]).square().mean();
  };
  model.batch = {.inputs = {numbers.draw({kRows, kWidth})},
                 .targets = {numbers.draw({kRows, kWidth})}};
  return model;
}

void expect_like_plain(const MakePlainModel& make, const ExecutorOptions& options = {},
                       bool zeros_are_none = false) {
  for (const std::string& schedule : kUsualSchedules) {
    EXPECT_EQ(difference_from_plain(make, schedule, 2, 4, 3, options, zeros_are_none), "")
        << schedule;
  }
}

TEST(LegalStages, TheBase) {
  expect_like_plain([](int stages) { return base(stages); });
}

// ------------------------------------------------------------------------------------------
// gradients of what the caller passes

TEST(GradientsOfTheBatch, InputsAndExtraInputs) {
  for (const bool dynamic : {false, true}) {
    expect_like_plain(
        [](int stages) {
          PlainModel model = base(stages);
          model.batch.inputs[0].requires_grad_();
          Numbers numbers(2);
          model.batch.extra = {numbers.draw({kRows, kWidth}).requires_grad_(),
                               numbers.draw({kRows, kWidth})};
          const std::vector<Tensors> weights = model.weights;
          model.forward = [weights](int stage, const Tensors& in) -> Tensors {
            const at::Tensor& w = weights[static_cast<size_t>(stage)][0];
            return {(in[0].mm(w) * in[1]).tanh() + in[2]};
          };
          return model;
        },
        {.dynamic_shapes = dynamic});
  }
}

// The caller computed its inputs from a parameter of its own.
TEST(GradientsOfTheBatch, FlowOnToWhatInputsWereComputedFrom) {
  for (const std::string& schedule : kUsualSchedules) {
    const ir::Program program = named(schedule.c_str(), 2, 4);
    const int stages = program.placement.num_stages();
    Numbers numbers(3);
    const at::Tensor rows = numbers.draw({kRows, kWidth});
    const at::Tensor table = numbers.draw({kWidth, kWidth}).requires_grad_();
    {
      PlainModel model = base(stages);
      const at::Tensor inputs = rows.mm(table).tanh();
      for (int m = 0; m < 4; ++m) {
        at::Tensor h = inputs.chunk(4)[static_cast<size_t>(m)];
        for (int stage = 0; stage < stages; ++stage) h = model.forward(stage, {h})[0];
        const at::Tensor target = model.batch.targets[0].chunk(4)[static_cast<size_t>(m)];
        (model.loss({h}, {target}) / 4).backward({}, /*retain_graph=*/true);
      }
    }
    const at::Tensor expected = table.grad().clone();
    table.mutable_grad().reset();
    expect_no_errors(2, [&](int rank, comms::World& world) {
      PlainModel model = base(stages);
      ExecutorHere executor(program, stages_of(program, rank, model.forward), world,
                            {.loss = model.loss});
      if (rank == 0) model.batch.inputs = {rows.mm(table).tanh()};
      executor.step(model.batch);
    });
    EXPECT_TRUE(at::allclose(table.grad(), expected, 1e-12, 1e-12)) << schedule;
  }
}

// ------------------------------------------------------------------------------------------
// steps without gradients

std::vector<std::string> errors_of_step(const MakePlainModel& make, bool inference_mode) {
  const ir::Program program = named("1F1B", 2, 4);
  return errors_of(2, [&](int rank, comms::World& world) {
    const PlainModel model = make(2);
    ExecutorHere executor(program, stages_of(program, rank, model.forward), world,
                          {.loss = model.loss});
    // On one rank: the other one learns of it.
    const std::optional<c10::InferenceMode> guard =
        inference_mode && rank == 1 ? std::optional<c10::InferenceMode>(std::in_place)
                                    : std::nullopt;
    executor.step(model.batch);
  });
}

TEST(WithoutGradients, InferenceModeIsRefusedOnAllRanks) {
  const auto errors = errors_of_step([](int stages) { return base(stages); }, true);
  for (const std::string& error : errors) EXPECT_TRUE(contains(error, "InferenceMode")) << error;
  EXPECT_EQ(errors[0], errors[1]);
}

TEST(WithoutGradients, FrozenModelsAndStagesWithoutGradModeAreErrorsOnAllRanks) {
  const auto frozen = [](int stages) {
    PlainModel model = base(stages);
    for (const Tensors& weights : model.weights) weights[0].requires_grad_(false);
    return model;
  };
  const auto no_grad = [](int stages) {
    PlainModel model = base(stages);
    model.forward = [forward = model.forward](int stage, const Tensors& in) {
      const c10::NoGradGuard guard;
      return forward(stage, in);
    };
    return model;
  };
  for (const MakePlainModel& make : {MakePlainModel(frozen), MakePlainModel(no_grad)}) {
    const auto errors = errors_of_step(make, false);
    for (const std::string& error : errors)
      EXPECT_TRUE(contains(error, "expected a loss that requires a gradient")) << error;
  }
}

// ------------------------------------------------------------------------------------------
// in place

TEST(InPlace, TheLossMayWriteToTheOutputs) {
  expect_like_plain([](int stages) {
    PlainModel model = base(stages);
    const std::vector<Tensors> weights = model.weights;
    model.forward = [weights](int stage, const Tensors& in) -> Tensors {
      return {in[0].mm(weights[static_cast<size_t>(stage)][0])};
    };
    model.loss = [](const Tensors& out, const Tensors& targets) {
      at::Tensor logits = out[0];
      logits /= 2;
      logits.narrow(1, 0, 2).mul_(3);
      return (logits - targets[0]).square().mean();
    };
    return model;
  });
}

TEST(InPlace, AStageMayWriteToItsInput) {
  for (const bool with_input_grads : {false, true}) {
    expect_like_plain([=](int stages) {
      PlainModel model = base(stages);
      if (with_input_grads) model.batch.inputs[0].requires_grad_();
      const std::vector<Tensors> weights = model.weights;
      model.forward = [weights](int stage, const Tensors& in) -> Tensors {
        // The batch itself is the caller's.
        at::Tensor x = stage == 0 ? in[0] * 1 : in[0];
        x.add_(0.1);
        x.narrow(1, 1, 2).mul_(2);
        x.relu_();
        return {x.mm(weights[static_cast<size_t>(stage)][0])};
      };
      return model;
    });
  }
}

// ------------------------------------------------------------------------------------------
// what is there in some steps only

// Each stage passes on a second output. The last one uses it in the steps of `uses`.
MakePlainModel with_aux(std::function<bool(int step)> uses) {
  return [uses](int stages) {
    PlainModel model = base(stages, 2);
    const std::vector<Tensors> weights = model.weights;
    const auto used = std::make_shared<bool>(false);
    model.before_step = [=](int step) { *used = uses(step); };
    model.forward = [weights, used, stages](int stage, const Tensors& in) -> Tensors {
      const Tensors& w = weights[static_cast<size_t>(stage)];
      const at::Tensor h = in[0].mm(w[0]).tanh();
      const at::Tensor aux = stage == 0 ? in[0].mm(w[1]).tanh() : in[1] * 0.5;
      if (stage < stages - 1) return {h, aux};
      return {*used ? h + aux : h};
    };
    return model;
  };
}

TEST(Changing, AGradientMayAppearLater) {
  expect_like_plain(with_aux([](int step) { return step > 0; }));
  expect_like_plain(with_aux([](int step) { return step > 0; }), {.dynamic_shapes = true});
}

TEST(Changing, AGradientMayAppearAndDisappear) {
  expect_like_plain(with_aux([](int step) { return step == 1; }));
}

// A transfer that carried all gradients in the first step goes on to carry them, as zeros.
TEST(Changing, AGradientThatDisappearsCountsAsZeros) {
  const MakePlainModel make = with_aux([](int step) { return step == 0; });
  for (const std::string& schedule : kUsualSchedules) {
    const ir::Program program = named(schedule.c_str(), 2, 4);
    const int stages = program.placement.num_stages();
    const Outcome expected = train_plain(make(stages), stages, 4, 2);
    std::vector<Outcome> found(2);
    expect_no_errors(2, [&](int rank, comms::World& world) {
      found[static_cast<size_t>(rank)] = train_rank_of(program, make(stages), world, 2);
    });
    for (int stage = 0; stage < stages; ++stage) {
      const Outcome& of_rank = found[static_cast<size_t>(program.placement.rank_of(stage))];
      for (size_t i = 0; i < 2; ++i) {
        const at::Tensor want = expected.grads[1].at(stage)[i], got = of_rank.grads[1].at(stage)[i];
        if (want.defined()) {
          EXPECT_TRUE(at::allclose(got, want, 1e-12, 1e-12)) << schedule << stage;
        } else {
          EXPECT_TRUE(!got.defined() || !got.any().item<bool>()) << schedule << stage;
        }
      }
    }
  }
}

// It depends on the microbatch's rows whether a microbatch uses the second output.
TEST(Changing, AGradientMayBeMissingInSomeMicrobatches) {
  expect_like_plain([](int stages) {
    PlainModel model = with_aux([](int) { return true; })(stages);
    model.batch.inputs.push_back(at::arange(kRows, at::kLong).to(tests::here()));
    const std::vector<Tensors> weights = model.weights;
    model.forward = [weights, stages](int stage, const Tensors& in) -> Tensors {
      const Tensors& w = weights[static_cast<size_t>(stage)];
      const at::Tensor h = in[0].mm(w[0]).tanh();
      const at::Tensor row = stage == 0 ? in[1] : in[2];
      const at::Tensor aux = stage == 0 ? in[0].mm(w[1]).tanh() : in[1] * 0.5;
      if (stage < stages - 1) return {h, aux, row};
      return {row[0].item<int64_t>() % 4 == 0 ? h + aux : h};
    };
    return model;
  });
}

TEST(Changing, OutputsMayBeUndefined) {
  for (const bool dynamic : {false, true}) {
    expect_like_plain(
        [](int stages) {
          PlainModel model = base(stages);
          const std::vector<Tensors> weights = model.weights;
          model.forward = [weights](int stage, const Tensors& in) -> Tensors {
            EXPECT_EQ(in.size(), stage > 0 ? 2u : 1u);
            return {in[0].mm(weights[static_cast<size_t>(stage)][0]).tanh(), at::Tensor()};
          };
          return model;
        },
        {.dynamic_shapes = dynamic});
  }
}

// The parameters of all stages but the last are frozen in some steps.
TEST(Changing, ParametersMayBeFrozenAndTrained) {
  for (const int first_frozen : {0, 1}) {
    for (const bool dynamic : {false, true}) {
      expect_like_plain(
          [=](int stages) {
            PlainModel model = base(stages);
            const std::vector<Tensors> weights = model.weights;
            model.before_step = [=](int step) {
              for (int stage = 0; stage < stages - 1; ++stage)
                weights[static_cast<size_t>(stage)][0].requires_grad_(step % 2 != first_frozen);
            };
            return model;
          },
          {.dynamic_shapes = dynamic});
    }
  }
}

// What is channels_last arrives so, forward and backward.
TEST(MemoryFormats, ChannelsLastStaysSo) {
  for (const bool dynamic : {false, true}) {
    const ir::Program program = named("1F1B", 2, 2);
    expect_no_errors(2, [&](int rank, comms::World& world) {
      int calls = 0;
      const auto stage = [&](int index, const Tensors& in) -> Tensors {
        constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;
        if (index == 1) {
          EXPECT_TRUE(in[0].is_contiguous(kChannelsLast));
          EXPECT_TRUE(at::equal(in[0], 2 * at::arange(48., tests::here()).view({2, 3, 4, 2})));
          return {doubled(in[0])};
        }
        const at::Tensor y = doubled(in[0]).contiguous(kChannelsLast);
        y.register_hook([&](const at::TensorBase& grad) {
          EXPECT_TRUE(grad.is_contiguous(kChannelsLast));
          ++calls;
        });
        return {y};
      };
      ExecutorHere executor(program, stages_of(program, rank, stage), world,
                            {.loss = [](const Tensors& out) { return out[0].square().sum(); },
                             .dynamic_shapes = dynamic});
      const at::Tensor x = at::arange(48., tests::here()).view({2, 3, 4, 2});
      for (int step = 0; step < 2; ++step) executor.step({.inputs = {at::cat({x, x})}});
      EXPECT_EQ(calls, rank == 0 ? 4 : 0);
    });
  }
}

// An evaluation may have other shapes than training, and than the last evaluation.
TEST(Changing, EvaluationsHaveTheirOwnShapes) {
  for (const char* schedule : {"1F1B", "ZBV"}) {
    const ir::Program program = named(schedule, 2, 4);
    expect_no_errors(2, [&](int rank, comms::World& world) {
      const PlainModel model = base(program.placement.num_stages());
      ExecutorHere executor(program, stages_of(program, rank, model.forward), world,
                            {.loss = model.loss});
      for (const int64_t rows : {5, 8, 8, 4}) {
        executor.step(model.batch);
        const at::Tensor x = at::ones({rows, kWidth}, tests::here(at::kDouble));
        at::Tensor expected = x;
        {
          const c10::NoGradGuard no_grad;
          for (int stage = 0; stage < program.placement.num_stages(); ++stage)
            expected = model.forward(stage, {expected})[0];
        }
        const StepResult result = executor.eval({.inputs = {x}});
        if (!result.outputs.empty()) {
          EXPECT_TRUE(at::allclose(result.outputs[0], expected, 1e-12, 1e-12));
        }
      }
    });
  }
}

TEST(Changing, WhatCannotChangeNamesTheOptionsThatHelp) {
  const ir::Program program = named("1F1B", 2, 4);
  const auto errors = errors_of(2, [&](int rank, comms::World& world) {
    PlainModel model = base(2);
    const auto width = std::make_shared<int64_t>(kWidth);
    model.forward = [forward = model.forward, width](int stage, const Tensors& in) -> Tensors {
      if (stage > 0) return {in[0].sum(1)};
      return {forward(stage, in)[0].narrow(1, 0, *width)};
    };
    ExecutorHere executor(program, stages_of(program, rank, model.forward), world,
                          {.loss = sum_of});
    executor.step({.inputs = model.batch.inputs});
    *width = 2;
    executor.step({.inputs = model.batch.inputs});
    executor.confirm();  // on a device a rank's step may have returned before
  });
  for (const std::string& error : errors) {
    EXPECT_TRUE(contains(error, "forget_shapes()")) << error;
    EXPECT_TRUE(contains(error, "dynamic_shapes")) << error;
  }
}

// ------------------------------------------------------------------------------------------
// shared graphs

// The loss uses what the last stage has computed, besides its outputs: an auxiliary loss.
TEST(SharedGraphs, TheLossUsesTensorsOfTheLastStage) {
  expect_like_plain([](int stages) {
    PlainModel model = base(stages, 2);
    const std::vector<Tensors> weights = model.weights;
    const auto aux = std::make_shared<at::Tensor>();
    model.forward = [weights, aux, stages](int stage, const Tensors& in) -> Tensors {
      const Tensors& w = weights[static_cast<size_t>(stage)];
      const at::Tensor h = in[0].mm(w[0]).tanh(), gate = (w[0] * w[1]).tanh();
      if (stage == stages - 1) *aux = h.square().mean() + gate.square().sum();
      return {h.mm(gate)};
    };
    model.loss = [aux](const Tensors& out, const Tensors& targets) {
      return (out[0] - targets[0]).square().mean() + 0.1 * *aux;
    };
    return model;
  });
}

std::atomic<int> backwards;

struct CountsBackwards : torch::autograd::Function<CountsBackwards> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static Tensors backward(torch::autograd::AutogradContext*, Tensors grads) {
    ++backwards;
    return grads;
  }
};

// One backward covers the loss and the last stage.
TEST(SharedGraphs, ANodeOfTheLossAndTheStageRunsOncePerMicrobatch) {
  for (const std::string& schedule : kUsualSchedules) {
    const ir::Program program = named(schedule.c_str(), 2, 4);
    const int stages = program.placement.num_stages();
    backwards = 0;
    expect_no_errors(2, [&](int rank, comms::World& world) {
      PlainModel model = base(stages);
      const auto aux = std::make_shared<at::Tensor>();
      const auto forward = [plain = model.forward, aux, stages](int stage, const Tensors& in) {
        if (stage != stages - 1) return plain(stage, in);
        *aux = CountsBackwards::apply(in[0]);
        return plain(stage, {*aux});
      };
      const auto loss = [plain = model.loss, aux](const Tensors& out, const Tensors& targets) {
        return plain(out, targets) + aux->square().mean();
      };
      ExecutorHere executor(program, stages_of(program, rank, forward), world, {.loss = loss});
      executor.step(model.batch);
    });
    EXPECT_EQ(backwards, 4) << schedule;
  }
}

}  // namespace
}  // namespace pipewright::executor
