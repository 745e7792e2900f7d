// Stages over modules of torch::nn, and the first lines of the README.
#include "pipewright/executor/module_stage.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "pipewright/comms/threads.h"
#include "pipewright/executor/executor.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedules/registry.h"

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

TEST(MakeStage, TakesModulesOfEveryForm) {
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

TEST(MakeStage, AWrongNumberOfTensors) {
  try {
    make_stage(std::make_shared<Pair>())->forward(0, {at::ones({1})});
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "the module's forward takes 2 tensors, and is given 1");
  }
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

TEST(Readme, ItsLines) {
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

}  // namespace
}  // namespace pipewright::executor
