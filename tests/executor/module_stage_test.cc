// Stages over modules of torch::nn, and the examples in the headers.
#include "pipewright/executor/module_stage.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/adamw.h>

#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "pipewright/comms/threads/threads.h"
#include "pipewright/executor/executor.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedules/registry.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::executor {
namespace {

struct Pair : torch::nn::Module {
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, at::Tensor y) {
    return {x + y, x - y};
  }
};

struct List : torch::nn::Module {
  Tensors forward(const Tensors& inputs) { return {inputs[1], inputs[0]}; }
};

struct Const : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) const { return x * 3; }
};

struct Overloaded : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) { return x + y; }
  double forward(const at::Tensor&, const at::Tensor&, const at::Tensor&) { return 0; }
  at::Tensor forward(const Tensors& inputs) { return at::stack(inputs); }
};

struct Template : torch::nn::Module {
  template <typename T>
  at::Tensor forward(const T& x) {
    return x * 2;
  }
};

// An argument of each kind, and as many defaults as there can be.
struct Rich : torch::nn::Module {
  std::tuple<at::Tensor, std::optional<at::Tensor>, std::pair<at::Tensor, at::Tensor>, Tensors>
  forward(at::Tensor& x, const std::optional<at::Tensor>& mask = {},
          std::array<at::Tensor, 2> two = {}, Tensors&& rest = {}) const {
    has_mask = mask.has_value();
    return {x, mask, {two[0], two[1]}, rest};
  }
  mutable bool has_mask = false;
};

struct Static : torch::nn::Module {
  static at::Tensor forward(at::TensorList list, bool negate = false) {
    return negate ? -at::stack(list) : at::stack(list);
  }
};

struct Flagged : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, bool negate, const at::Tensor& y = {}) {
    return negate ? -x : x + y;
  }
};
struct HasAVectorInTheMiddle : torch::nn::Module {
  at::Tensor forward(const Tensors& inputs, const at::Tensor& x) { return inputs[0] + x; }
};
struct ReturnsADouble : torch::nn::Module {
  double forward(const at::Tensor&) { return 0; }
};
struct Hidden : torch::nn::Module {
 private:
  at::Tensor forward(const at::Tensor& x) { return x; }
};
static_assert(!modules::TakesTensors<std::shared_ptr<Flagged>>);
static_assert(!modules::TakesTensors<std::shared_ptr<HasAVectorInTheMiddle>>);
static_assert(!modules::TakesTensors<std::shared_ptr<ReturnsADouble>>);
static_assert(!modules::TakesTensors<std::shared_ptr<Hidden>>);

TEST(MakeStage, TakesEveryKindOfModule) {
  const at::Tensor x = at::ones({2, 3}), y = at::full({2, 3}, 5.0);
  const Tensors pair = make_stage(std::make_shared<Pair>())->forward(0, {x, y});
  EXPECT_TRUE(at::equal(pair.at(0), x + y));
  EXPECT_TRUE(at::equal(pair.at(1), x - y));
  EXPECT_TRUE(at::equal(make_stage(std::make_shared<List>())->forward(0, {x, y}).at(0), y));
  EXPECT_TRUE(at::equal(make_stage(std::make_shared<Const>())->forward(0, {x}).at(0), x * 3));
  torch::nn::Linear linear(3, 4);
  EXPECT_TRUE(at::equal(make_stage(linear)->forward(0, {x}).at(0), linear->forward(x)));
  torch::nn::Sequential sequential(torch::nn::Linear(3, 4), torch::nn::Linear(4, 2));
  EXPECT_TRUE(at::equal(make_stage(sequential)->forward(0, {x}).at(0), sequential->forward(x)));
}

TEST(MakeStage, ChoosesTheOverloadForTheNumberOfTensors) {
  const auto stage = make_stage(std::make_shared<Overloaded>());
  const at::Tensor x = at::ones({3}), y = at::full({3}, 5.0);
  EXPECT_TRUE(at::equal(stage->forward(0, {x}).at(0), x));
  EXPECT_TRUE(at::equal(stage->forward(0, {x, y}).at(0), x + y));
  // The overload for three returns no tensor.
  EXPECT_TRUE(at::equal(stage->forward(0, {x, y, x}).at(0), at::stack({x, y, x})));
  EXPECT_TRUE(at::equal(make_stage(std::make_shared<Template>())->forward(0, {x}).at(0), 2 * x));
  EXPECT_TRUE(at::equal(make_stage(std::make_shared<Static>())->forward(0, {x, y}).at(0),
                        at::stack({x, y})));
}

TEST(MakeStage, FillsArgumentsInOrder) {
  const auto module = std::make_shared<Rich>();
  const auto stage = make_stage(module);
  Tensors in;
  for (int i = 0; i < 6; ++i) in.push_back(at::full({}, i));
  for (const size_t given : {1, 2, 4, 5, 6}) {
    const Tensors inputs(in.begin(), in.begin() + static_cast<int64_t>(given));
    const Tensors outputs = stage->forward(0, inputs);
    ASSERT_EQ(outputs.size(), std::max<size_t>(given, 4));
    for (size_t i = 0; i < outputs.size(); ++i) {
      ASSERT_EQ(outputs[i].defined(), i < given) << given << " " << i;
      if (i < given) {
        EXPECT_EQ(outputs[i].item<int>(), i);
      }
    }
    EXPECT_EQ(module->has_mask, given > 1);
  }
  // What is undefined is absent.
  EXPECT_FALSE(stage->forward(0, {in[0], at::Tensor(), in[1], in[2]}).at(1).defined());
  EXPECT_FALSE(module->has_mask);
}

TEST(MakeStage, RunsTheHooksOfAModuleWithSeveralOutputs) {
  struct Hook final : modules::ForwardHook {
    Tensors run(const torch::nn::Module*, const Function& forward, Tensors inputs) override {
      Tensors outputs = forward(inputs);
      sizes.push_back(outputs.size());
      return outputs;
    }
    std::vector<size_t> sizes;
  };
  torch::nn::LSTM lstm(3, 3);
  const auto hook = std::make_shared<Hook>();
  modules::register_forward_hook(*lstm, hook);
  const at::Tensor x = at::ones({2, 4, 3});
  const Tensors outputs = make_stage(lstm)->forward(0, {x});
  const auto [output, state] = modules::forward(lstm, x);
  EXPECT_EQ(hook->sizes, (std::vector<size_t>{3, 3}));
  EXPECT_TRUE(at::equal(outputs.at(0), output));
  EXPECT_TRUE(at::equal(outputs.at(2), std::get<1>(state)));
}

template <typename Module>
std::string error_of(size_t num_inputs) {
  try {
    make_stage(std::make_shared<Module>())->forward(0, Tensors(num_inputs, at::ones({1})));
  } catch (const std::invalid_argument& error) {
    const std::string text = error.what();
    return text.substr(text.rfind("::") + 2);  // without the namespace
  }
  return "";
}

TEST(MakeStage, WrongNumberOfTensors) {
  EXPECT_EQ(error_of<Pair>(1), "Pair: expected 2 tensors, got 1");
  EXPECT_EQ(error_of<Const>(2), "Const: expected 1 tensor, got 2");
  EXPECT_EQ(error_of<Rich>(3), "Rich: expected 1, 2 or at least 4 tensors, got 3");
  EXPECT_EQ(error_of<Template>(2), "Template: expected 1 tensor, got 2");
}

TEST(MakeStage, CheckpointsAModule) {
  torch::nn::Linear linear(3, 3);
  const at::Tensor x = at::ones({2, 3});
  autograd::checkpoint(linear, x).sum().backward();
  const at::Tensor grad = linear->weight.grad().clone();
  linear->zero_grad();
  linear->forward(x).sum().backward();
  EXPECT_TRUE(at::equal(grad, linear->weight.grad()));
}

ir::Program lower(const char* name, const schedules::Shape& shape) {
  const schedules::ScheduleSpec& spec = *schedules::find_schedule(name);
  ir::Diagnostics diagnostics;
  return schedule::lower(schedules::make_order(spec, shape), {}, &diagnostics).value();
}

// The example of executor.h.
TEST(HeaderExamples, Executor) {
  const ir::Program program = lower("1F1B", {1, 1, 2});
  comms::World world = std::move(comms::thread_worlds(1)[0]);
  torch::nn::Linear module(3, 3);
  const at::Tensor x = at::ones({4, 3}), y = at::zeros({4, 3});
  const std::vector<std::pair<at::Tensor, at::Tensor>> batches = {{x, y}, {x + 1, y}};
  const double loss_before = at::mse_loss(module->forward(x), y).item<double>();

  Executor executor(program, {{world.rank(), {make_stage(module)}}}, world,
                    {.loss = [](const Tensors& outputs, const Tensors& targets) {
                      return at::mse_loss(outputs[0], targets[0]);
                    }});
  torch::optim::AdamW optimizer(module->parameters());
  for (const auto& [inputs, targets] : batches) {
    optimizer.zero_grad();
    const StepResult result = executor.step({.inputs = {inputs}, .targets = {targets}});
    EXPECT_EQ(result.losses.size(), 2u);
    const at::Tensor grad = module->weight.grad().clone();
    optimizer.zero_grad();
    at::mse_loss(module->forward(inputs), targets).backward();
    EXPECT_TRUE(at::allclose(grad, module->weight.grad()));
    optimizer.step();
  }
  const StepResult result = executor.eval({.inputs = {x}});
  EXPECT_TRUE(at::allclose(result.outputs.at(0), module->forward(x)));
  EXPECT_LT(at::mse_loss(result.outputs[0], y).item<double>(), loss_before);
}

TEST(ModuleStageTest, AStepHasTheGradientsOfThePlainModule) {
  comms::World world = std::move(comms::thread_worlds(1)[0]);
  const schedules::ScheduleSpec& spec = *schedules::find_schedule("1F1B");
  const schedules::Shape shape{1, 1, 2};
  ir::Diagnostics diagnostics;
  torch::nn::Linear module(3, 3);
  const at::Tensor inputs = at::ones({4, 3}), targets = at::zeros({4, 3});

  const ir::Program program =
      schedule::lower(schedules::make_order(spec, shape), {}, &diagnostics).value();
  executor::Executor executor(
      program, {{world.rank(), {executor::make_stage(module)}}}, world,
      {.loss = [](const executor::Tensors& outputs, const executor::Tensors& expected) {
        return at::mse_loss(outputs[0], expected[0]);
      }});
  const executor::StepResult result = executor.step({{inputs}, {}, {targets}});
  EXPECT_EQ(result.losses.size(), 2u);
  const at::Tensor grad = module->weight.grad().clone();
  module->zero_grad();
  at::mse_loss(module->forward(inputs), targets).backward();
  EXPECT_TRUE(at::allclose(grad, module->weight.grad()));
}

// The example of stage.h.
class Scale final : public Stage {
 public:
  Tensors forward(int microbatch, const Tensors& inputs) override {
    inputs_[microbatch] = inputs[0];
    // Only outputs that require a gradient receive one.
    return {(weight * inputs[0]).detach().requires_grad_(at::GradMode::is_enabled())};
  }
  Tensors backward_input(int microbatch, Tensors output_grads) override {
    output_grads_[microbatch] = output_grads[0];
    return {weight * output_grads[0]};
  }
  void backward_weight(int microbatch) override {
    weight_grad += (inputs_[microbatch] * output_grads_[microbatch]).sum();
    inputs_.erase(microbatch);
    output_grads_.erase(microbatch);
  }
  Tensors backward(int microbatch, Tensors output_grads) override {
    Tensors input_grads = backward_input(microbatch, std::move(output_grads));
    backward_weight(microbatch);
    return input_grads;
  }
  void clear() override { inputs_ = output_grads_ = {}; }

  at::Tensor weight = at::ones({}), weight_grad = at::zeros({});

 private:
  std::map<int, at::Tensor> inputs_, output_grads_;  // by microbatch
};

TEST(HeaderExamples, StageWithItsOwnBackward) {
  for (const char* name : {"1F1B", "ZB-H1"}) {  // B; I and W
    const ir::Program program = lower(name, {2, 2, 4});
    std::vector<comms::World> worlds = comms::thread_worlds(2);
    const auto run_rank = [&](int rank) {
      const auto scale = std::make_shared<Scale>();
      scale->weight.fill_(rank + 2);
      Executor executor(
          program, {{rank, {scale}}}, worlds[static_cast<size_t>(rank)],
          {.loss = [](const Tensors& outputs) { return outputs[0].sum(); }, .scale_grads = false});
      executor.eval({.inputs = {at::ones({8})}});
      const StepResult result = executor.step({.inputs = {at::arange(8.0)}}, true);
      EXPECT_EQ(scale->weight_grad.item<double>(), 28 * (rank == 0 ? 3 : 2)) << name;
      if (rank == 1) {
        EXPECT_TRUE(at::equal(result.outputs.at(0), 6 * at::arange(8.0)));
      }
    };
    EXPECT_EQ(tests::run_ranks(2, run_rank), "");
  }
}

}  // namespace
}  // namespace pipewright::executor
