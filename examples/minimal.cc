// A trainer of one's own, complete: two pipeline stages, sharded over the other ranks, trained,
// evaluated and saved. docs/training.md explains each part.
//
//   pipewright launch -n 4 -- minimal
//
// Built with //:pipewright_cuda or pipewright::nccl (minimal_cuda), `minimal --device cuda` trains
// on GPUs, one per process: the lines that name `device` are all that differs.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "pipewright/checkpoint/torch/training_state.h"
#include "pipewright/comms/gloo/gloo.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/comms/store_rounds.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/modules/clip_grad_norm.h"
#include "pipewright/modules/distribution.h"
#include "pipewright/schedule/compile/compile.h"
#if __has_include("pipewright/comms/nccl/nccl.h")
#include "pipewright/comms/nccl/nccl.h"
#define MINIMAL_NCCL
#endif

using namespace pipewright;

at::Tensor loss(const executor::Tensors& outputs, const executor::Tensors& targets) {
  return at::mse_loss(outputs[0], targets[0]);
}

int main(int argc, char** argv) try {
  const std::vector<std::string> flags(argv + 1, argv + argc);
  const bool on_gpus = flags == std::vector<std::string>{"--device", "cuda"};
  if (!flags.empty() && !on_gpus) {
    std::cerr << "expected no arguments or `--device cuda`\n";
    return 2;
  }
  const comms::Environment environment = comms::read_environment();
#ifdef MINIMAL_NCCL
  const at::Device device = on_gpus ? comms::nccl_device(environment) : at::kCPU;
  comms::World world = on_gpus ? comms::nccl_world(environment) : comms::gloo_world(environment);
#else
  if (on_gpus) {
    std::cerr << "--device cuda: this program was built without NCCL\n";
    return 2;
  }
  const at::Device device = at::kCPU;
  comms::World world = comms::gloo_world(environment);
#endif
  const c10::DeviceGuard current(device);  // for all groups and stages
  comms::Mesh mesh(world, {{"pp", 2}, {"dp", world.size() / 2}});
  const schedule::CompileResult compiled =
      schedule::compile({.source = "ZBV", .shape = {.ranks = 2, .microbatches = 4}});
  const ir::Program& program = compiled.program();

  std::map<int, executor::LocalStage> stages;
  std::vector<at::Tensor> parameters;
  checkpoint::TrainingState state;
  for (const int stage : program.placement.stages_of(mesh.coordinate("pp"))) {
    at::manual_seed(static_cast<uint64_t>(stage));  // the same weights in every run
    torch::nn::Linear module(16, 16);
    module->to(device);
    stages[stage] = {executor::make_stage(module),
                     fsdp::fully_shard(*module, mesh, {"dp"})->data_parallel()};
    state.add_module(*module, modules::layouts(*module), "layer" + std::to_string(stage) + ".");
    for (const at::Tensor& parameter : module->parameters()) parameters.push_back(parameter);
  }
  executor::Executor executor(program, std::move(stages), world,
                              {.loss = loss, .device = device, .ranks = mesh.ranks({"pp"})});
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(0.01));
  state.set_optimizer(optimizer);
  const auto gradients = modules::grads_to_clip(parameters);
  const comms::BackendPtr everyone = mesh.group({"pp", "dp"});

  const auto rows = [&](uint64_t seed) {
    return at::randn({48, 16}, at::detail::createCPUGenerator(seed)).to(device);
  };
  for (uint64_t step = 0; step < 30; ++step) {
    const at::Tensor x = rows(step).chunk(mesh.size("dp"))[mesh.coordinate("dp")];
    optimizer.zero_grad();
    executor.step({.inputs = {x}, .targets = {x.flip({1})}});
    modules::clip_grad_norm_(gradients, *everyone, 1.0);
    optimizer.step();
  }

  const executor::StepResult test =
      executor.eval({.inputs = {rows(99)}, .targets = {rows(99).flip({1})}});
  if (!test.losses.empty() && mesh.coordinate("dp") == 0)
    std::cout << "loss " << at::stack(test.losses).mean().item<double>() << std::endl;
  comms::StoreExchange exchange(world, "checkpoint");
  checkpoint::StateSnapshot taken = state.snapshot();
  taken.snapshot.step = 30;
  checkpoint::Saver({.folder = "minimal_ckpt", .rank = world.rank()}, std::ref(exchange))
      .save(taken.snapshot);
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << "\n";
  return 1;
}
