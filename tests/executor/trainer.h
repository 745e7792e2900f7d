#ifndef PIPEWRIGHT_TESTS_EXECUTOR_TRAINER_H_
#define PIPEWRIGHT_TESTS_EXECUTOR_TRAINER_H_

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "pipewright/comms/mesh.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/fsdp/fully_shard.h"
#include "tests/support/ranks/ground.h"

// One rank of pp x dp with everything that a trainer has, for tests of failures, on the CPU or on
// the test device (ground.h).

namespace pipewright::executor {

inline at::Tensor mse(const Tensors& outputs, const Tensors& targets) {
  return at::mse_loss(outputs[0], targets[0]);
}

enum class Parallel { kNone, kReplicate, kShard };

inline constexpr int64_t kWidth = 6;

// One rank of pp x dp: a Linear per stage, and everything that a trainer has.
struct Trainer {
  Trainer(const ir::Program& program, Parallel parallel, int copies, comms::World& world,
          std::function<void(int stage, int microbatch)> before_forward = nullptr,
          ExecutorOptions options = {})
      : mesh(world, {{"pp", program.placement.num_ranks()}, {"dp", copies}}) {
    const comms::BackendPtr group = mesh.group({"dp"});
    std::map<int, LocalStage> stages;
    for (const int stage : program.placement.stages_of(mesh.coordinate("pp"))) {
      torch::nn::Linear linear(kWidth, kWidth);
      linear->to(tests::here());
      {
        const c10::NoGradGuard no_grad;
        linear->weight.copy_(
            at::arange(kWidth * kWidth).view({kWidth, kWidth}).mul(0.37 + stage).sin().mul(0.4));
        linear->bias.fill_(0.1 * stage);
      }
      std::shared_ptr<modules::DataParallel> data_parallel;
      if (parallel == Parallel::kReplicate)
        data_parallel = ddp::replicate(*linear, group)->data_parallel();
      if (parallel == Parallel::kShard)
        data_parallel = fsdp::fully_shard(*linear, group)->data_parallel();
      stages[stage] = {std::make_shared<ModuleStage>([=, module = linear.ptr()](const Tensors& in) {
                         if (before_forward) before_forward(stage, 0);
                         return Tensors{at::tanh(module->forward(in[0]))};
                       }),
                       data_parallel};
      for (const at::Tensor& weight : linear->parameters()) weights.push_back(weight);
    }
    options.loss = mse;
    options.device = tests::here();
    options.ranks = mesh.ranks({"pp"});
    executor.emplace(program, std::move(stages), world, options);
    optimizer.emplace(weights, torch::optim::AdamWOptions(1e-2));
  }

  // Data that depends on the step and on the copy.
  at::Tensor data(int64_t step, int64_t rows, double scale) const {
    return at::arange(rows * kWidth)
        .view({rows, kWidth})
        .mul(scale * (1 + 0.01 * step) + 0.1 * mesh.coordinate("dp"))
        .sin()
        .to(tests::here());
  }
  Batch batch(int64_t step, int64_t rows = 8) const {
    return {{data(step, rows, 0.7)}, {}, {data(step, rows, 0.3)}};
  }
  void train(int64_t step) {
    optimizer->zero_grad();
    executor->step(batch(step));
    executor->confirm();
    optimizer->step();
  }

  comms::Mesh mesh;
  std::vector<at::Tensor> weights;
  std::optional<Executor> executor;
  std::optional<torch::optim::AdamW> optimizer;
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_TESTS_EXECUTOR_TRAINER_H_
