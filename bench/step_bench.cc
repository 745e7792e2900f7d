// Measures one training step of a pipeline: Interleaved1F1B on 2 ranks with 2 stages each and 8
// microbatches, over Gloo; each stage is a stack of Linear and ReLU layers.
//
//   bazel build //cli:pipewright //bench:step_bench
//   bazel-bin/cli/pipewright launch -n 2 -- bazel-bin/bench/step_bench WIDTH ROWS LAYERS STEPS
//   bazel-bin/bench/step_bench WIDTH ROWS LAYERS STEPS threads
//
// WIDTH is the size of a layer, ROWS the rows per microbatch, LAYERS the layers per stage. The rank
// of the last stage prints the median time of STEPS steps in microseconds, after as many steps of
// warm-up. bench/pytorch_step.py compares it with PyTorch's runtime.
//
// With `threads`, ranks are threads, so there is no wire. The rank of the last stage then also
// prints the time of its own forwards and backwards in a plain loop, and the difference per action.
// It includes the time that the schedule makes the rank wait for the other one.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "pipewright/comms/gloo.h"
#include "pipewright/comms/threads.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::executor {
namespace {

struct Size {
  int64_t width, rows, layers;
};

constexpr int kRanks = 2, kStages = 4, kMicrobatches = 8;

at::Tensor loss_of(const Tensors& outputs, const Tensors& targets) {
  return at::mse_loss(outputs[0], targets[0]);
}

// One rank's stages.
struct Part {
  Part(const std::vector<int>& indices, const Size& size) {
    for (const int stage : indices) {
      Tensors own;
      for (int64_t layer = 0; layer < size.layers; ++layer) {
        own.push_back((at::randn({size.width, size.width}) / size.width).set_requires_grad(true));
        own.push_back(at::zeros({size.width}).set_requires_grad(true));
      }
      weights.insert(weights.end(), own.begin(), own.end());
      stages[stage].stage = std::make_shared<ModuleStage>([own](const Tensors& inputs) {
        at::Tensor x = inputs[0];
        for (size_t i = 0; i < own.size(); i += 2) x = at::relu(at::linear(x, own[i], own[i + 1]));
        return Tensors{x};
      });
    }
  }

  std::map<int, LocalStage> stages;
  Tensors weights;
};

// The median time of `steps` calls of `body` in microseconds, after as many calls.
template <typename Body>
double median_us(int64_t steps, const Part& part, const Body& body) {
  std::vector<double> times;
  for (int64_t step = 0; step < 2 * steps; ++step) {
    for (const at::Tensor& weight : part.weights) weight.mutable_grad().reset();
    const auto start = std::chrono::steady_clock::now();
    body();
    const auto end = std::chrono::steady_clock::now();
    if (step >= steps)
      times.push_back(std::chrono::duration<double, std::micro>(end - start).count());
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

// The forwards and backwards of a step without an executor.
void plain_loop(const Part& part, const at::Tensor& input, const at::Tensor& target) {
  for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
    for (const auto& [index, local] : part.stages) {
      const at::Tensor x = input.detach().set_requires_grad(index > 0);
      const Tensors outputs = local.stage->forward(microbatch, {x});
      Tensors grads = {input};
      if (index == kStages - 1) {
        const at::Tensor leaf = outputs[0].detach().set_requires_grad(true);
        loss_of({leaf}, {target}).backward();
        grads = {leaf.grad()};
      }
      local.stage->backward(microbatch, grads);
    }
  }
}

ir::Program make_program() {
  ir::Diagnostics diagnostics;
  return schedule::lower(schedules::make_order(*schedules::find_schedule("Interleaved1F1B"),
                                               {kRanks, kStages, kMicrobatches}),
                         {}, &diagnostics)
      .value();
}

void run_rank(comms::World& world, const Size& size, int64_t steps, bool compares) {
  const ir::Program program = make_program();
  const Part part(program.placement.stages_of(world.rank()), size);
  Executor executor(program, part.stages, world, {.loss = loss_of});
  const Batch batch = {{at::randn({kMicrobatches * size.rows, size.width})},
                       {},
                       {at::randn({kMicrobatches * size.rows, size.width})}};
  const double step = median_us(steps, part, [&] { executor.step(batch); });
  if (!part.stages.contains(kStages - 1)) return;
  std::printf("median_us %.1f\n", step);
  if (!compares) return;
  const at::Tensor one = at::randn({size.rows, size.width});
  const double plain = median_us(steps, part, [&] { plain_loop(part, one, one); });
  const auto actions = program.rows[static_cast<size_t>(world.rank())].size();
  std::printf("plain_us %.1f\noverhead_us_per_action %.2f\n", plain,
              (step - plain) / static_cast<double>(actions));
}

int run(const Size& size, int64_t steps, bool threads) {
  at::set_num_threads(1);
  if (!threads) {
    comms::World world = comms::gloo_world(comms::read_environment());
    run_rank(world, size, steps, /*compares=*/false);
    return 0;
  }
  std::vector<comms::World> worlds = comms::thread_worlds(kRanks);
  std::vector<std::jthread> ranks;
  for (comms::World& world : worlds)
    ranks.emplace_back([&] { run_rank(world, size, steps, /*compares=*/true); });
  return 0;
}

}  // namespace
}  // namespace pipewright::executor

int main(int argc, char** argv) {
  const bool threads = argc == 6 && std::strcmp(argv[5], "threads") == 0;
  if (argc != 5 && !threads) {
    std::fprintf(stderr, "usage: step_bench WIDTH ROWS LAYERS STEPS [threads]\n");
    return 2;
  }
  return pipewright::executor::run({std::atoll(argv[1]), std::atoll(argv[2]), std::atoll(argv[3])},
                                   std::atoll(argv[4]), threads);
}
