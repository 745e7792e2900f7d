// The part of the communication over NCCL that one rank on one GPU can test, and ranks as threads
// that share a GPU.
#include "pipewright/comms/nccl/nccl.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "pipewright/comms/threads/threads.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedules/registry.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright {
namespace {

TEST(Nccl, WorldOfOneRank) {
  comms::World world = comms::nccl_world({});
  const comms::BackendPtr group = world.make_group("all", std::vector{0});
  std::vector<at::Tensor> tensors = {at::ones({4}, at::device(at::kCUDA))};
  group->allreduce(tensors)->wait();
  EXPECT_EQ(tensors[0].sum().item<float>(), 4);
}

// A pipeline of threads on one GPU computes the same gradients as on the CPU.
TEST(Cuda, ThreadsShareAGpu) {
  for (const char* name : {"1F1B", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV"}) {
    const schedules::ScheduleSpec& spec = *schedules::find_schedule(name);
    const schedules::Shape shape{2, schedules::default_stages(spec, 2), 4};
    ir::Diagnostics diagnostics;
    const ir::Program program =
        schedule::lower(schedules::make_order(spec, shape), {}, &diagnostics).value();
    const auto train = [&](at::Device device) {
      std::vector<at::Tensor> weights;
      for (int stage = 0; stage < shape.stages; ++stage) {
        weights.push_back((at::eye(8, at::kDouble) + 0.1 * stage + 0.05).to(device));
        weights.back().set_requires_grad(true);
      }
      std::vector<comms::World> worlds = comms::thread_worlds(2);
      EXPECT_EQ(tests::run_ranks(
                    2,
                    [&](int rank) {
                      std::map<int, executor::LocalStage> stages;
                      for (const int stage : program.placement.stages_of(rank)) {
                        const at::Tensor& w = weights[static_cast<size_t>(stage)];
                        stages[stage].stage = std::make_shared<executor::ModuleStage>(
                            [&w](const executor::Tensors& in) {
                              return executor::Tensors{at::tanh(in[0].mm(w))};
                            });
                      }
                      executor::Executor executor(
                          program, stages, worlds[static_cast<size_t>(rank)],
                          {.loss = [](const executor::Tensors& out,
                                      const executor::Tensors&) { return out[0].square().mean(); },
                           .device = device});
                      const at::Tensor x = at::arange(64, at::kDouble).view({8, 8}) / 64;
                      for (int step = 0; step < 3; ++step)
                        executor.step({.inputs = {x.to(device)}});
                    }),
                "");
      std::vector<at::Tensor> grads;
      for (const at::Tensor& weight : weights) grads.push_back(weight.grad().cpu());
      return grads;
    };
    const std::vector<at::Tensor> cpu = train(at::kCPU), cuda = train(at::Device(at::kCUDA, 0));
    for (size_t i = 0; i < cpu.size(); ++i)
      EXPECT_TRUE(at::allclose(cpu[i], cuda[i], 1e-10, 1e-12));
  }
}

}  // namespace
}  // namespace pipewright
