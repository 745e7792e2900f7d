// Measures one training step of a pipeline: Interleaved1F1B on 2 ranks with 2 stages each and 8
// microbatches, over Gloo; each stage is a stack of Linear and ReLU layers.
//
//   bazel build //cli:pipewright //bench:step_bench
//   bazel-bin/cli/pipewright launch -n 2 -- bazel-bin/bench/step_bench WIDTH ROWS LAYERS STEPS
//
// WIDTH is the size of a layer, ROWS the rows per microbatch, LAYERS the layers per stage. The rank
// of the last stage prints the median time of STEPS steps in microseconds, after as many steps of
// warm-up. bench/pytorch_step.py compares it with PyTorch's runtime.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "pipewright/comms/gloo.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::executor {
namespace {

int run(int64_t width, int64_t rows, int64_t layers, int64_t steps) {
  constexpr int kRanks = 2, kStages = 4, kMicrobatches = 8;
  at::set_num_threads(1);
  comms::World world = comms::gloo_world(comms::read_environment());
  ir::Diagnostics diagnostics;
  const ir::Program program =
      schedule::lower(schedules::make_order(*schedules::find_schedule("Interleaved1F1B"),
                                            {kRanks, kStages, kMicrobatches}),
                      {}, &diagnostics)
          .value();
  std::map<int, LocalStage> stages;
  Tensors weights;
  for (const int stage : program.placement.stages_of(world.rank())) {
    Tensors own;
    for (int64_t layer = 0; layer < layers; ++layer) {
      own.push_back((at::randn({width, width}) / width).set_requires_grad(true));
      own.push_back(at::zeros({width}).set_requires_grad(true));
    }
    weights.insert(weights.end(), own.begin(), own.end());
    stages[stage].stage = std::make_shared<ModuleStage>([own](const Tensors& inputs) {
      at::Tensor x = inputs[0];
      for (size_t i = 0; i < own.size(); i += 2) x = at::relu(at::linear(x, own[i], own[i + 1]));
      return Tensors{x};
    });
  }
  const bool prints = stages.contains(kStages - 1);
  Executor executor(program, std::move(stages), world,
                    {.loss = [](const Tensors& outputs, const Tensors& targets) {
                      return at::mse_loss(outputs[0], targets[0]);
                    }});
  const Batch batch = {
      {at::randn({kMicrobatches * rows, width})}, {}, {at::randn({kMicrobatches * rows, width})}};
  std::vector<double> times;
  for (int64_t step = 0; step < 2 * steps; ++step) {
    for (const at::Tensor& weight : weights) weight.mutable_grad().reset();
    const auto start = std::chrono::steady_clock::now();
    executor.step(batch);
    const auto end = std::chrono::steady_clock::now();
    if (step >= steps)
      times.push_back(std::chrono::duration<double, std::micro>(end - start).count());
  }
  std::ranges::sort(times);
  if (prints) std::printf("median_us %.1f\n", times[times.size() / 2]);
  return 0;
}

}  // namespace
}  // namespace pipewright::executor

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: step_bench WIDTH ROWS LAYERS STEPS\n");
    return 2;
  }
  return pipewright::executor::run(std::atoll(argv[1]), std::atoll(argv[2]), std::atoll(argv[3]),
                                   std::atoll(argv[4]));
}
