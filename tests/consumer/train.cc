// Trains a pipeline of two stages on one rank for one step: `@pipewright`, with LibTorch.
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <utility>

#include "pipewright/comms/threads/threads.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/schedule/compile/compile.h"

int main() {
  using namespace pipewright;
  const schedule::CompileResult compiled = schedule::compile(
      {.source = "Interleaved1F1B", .shape = {.ranks = 1, .stages = 2, .microbatches = 4}});
  comms::World world = std::move(comms::thread_worlds(1)[0]);
  const torch::nn::Linear first(8, 8), second(8, 8);
  executor::Executor executor(
      compiled.program(), {{0, {executor::make_stage(first)}}, {1, {executor::make_stage(second)}}},
      world, {.loss = [](const executor::Tensors& outputs, const executor::Tensors& targets) {
        return at::mse_loss(outputs[0], targets[0]);
      }});
  const auto result = executor.step({{at::ones({8, 8})}, {}, {at::zeros({8, 8})}});
  std::printf("%zu losses\n", result.losses.size());
  return first->weight.grad().defined() && second->weight.grad().defined() ? 0 : 1;
}
