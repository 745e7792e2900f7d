// Pipelines whose stages are tensor-parallel and sharded: test_3d_with_tp_dp_pp of PyTorch's
// test_pp_composability.py, for every schedule of the catalogue. PyTorch's test asserts only that
// it runs; here losses, gradients and parameters are those of the whole model on one rank.
#include "tests/support/training/pipeline.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/modules/distribution.h"
#include "pipewright/modules/forward.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/tp/parallelize.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"

namespace pipewright::tp {
namespace {

using tests::ModulePtr;

constexpr int kLayers = 8, kMicrobatches = 8, kSteps = 5;
constexpr int64_t kDim = 8, kRows = 16;

// Layers `begin` to `end` - 1, with their names in the whole model.
class Stack : public torch::nn::Module {
 public:
  Stack(int begin, int end, bool checkpointed) : checkpointed_(checkpointed) {
    for (int i = begin; i < end; ++i) {
      layers_.push_back(register_module("layer" + std::to_string(i),
                                        tests::make_mlp(kDim, 3, 42 + static_cast<uint64_t>(i))));
    }
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = input;
    for (const ModulePtr& layer : layers_) {
      const auto function = [layer](const std::vector<at::Tensor>& in) {
        return std::vector{modules::forward(layer, in[0])};
      };
      x = checkpointed_ ? autograd::checkpoint(function, {x})[0] : function({x})[0];
    }
    return x;
  }
  const std::vector<ModulePtr>& layers() const { return layers_; }

 private:
  const bool checkpointed_;
  std::vector<ModulePtr> layers_;
};

at::Tensor input_of(int step, int copy) {
  return tests::random_input({kRows, kDim}, tests::data_seed(step, copy));
}

torch::optim::AdamW optimizer_of(const std::vector<at::Tensor>& weights) {
  return torch::optim::AdamW(weights,
                             torch::optim::AdamWOptions(0.01).betas({0.9, 0.95}).weight_decay(0.1));
}

struct Reference {
  std::shared_ptr<Stack> model = std::make_shared<Stack>(0, kLayers, false);
  std::vector<std::vector<double>> losses;  // by step and copy
};

// The whole model on the data of both copies, with the mean of their losses.
Reference train_reference() {
  Reference reference;
  auto optimizer = optimizer_of(reference.model->parameters());
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    std::vector<double>& losses = reference.losses.emplace_back();
    for (int copy = 0; copy < 2; ++copy) {
      const at::Tensor loss = reference.model->forward(input_of(step, copy)).sum();
      (loss / 2).backward();
      losses.push_back(loss.item<double>());
    }
    optimizer.step();
  }
  return reference;
}

class PpTp : public testing::TestWithParam<const schedules::ScheduleSpec*> {};

TEST_P(PpTp, test_3d_with_tp_dp_pp) {
  at::set_num_threads(1);
  const Reference reference = train_reference();
  const auto whole = reference.model->named_parameters();
  const schedules::Shape shape{2, schedules::default_stages(*GetParam(), 2), kMicrobatches};
  ir::Diagnostics diagnostics;
  const ir::Program program =
      schedule::lower(schedules::make_order(*GetParam(), shape), {}, &diagnostics).value();
  for (const bool checkpointed : {false, true}) {
    std::vector<comms::World> worlds = tests::make_worlds(8);
    const auto run_rank = [&](int rank) {
      comms::World& world = worlds[static_cast<size_t>(rank)];
      comms::Mesh mesh(world, {{"dp", 2}, {"pp", 2}, {"tp", 2}});
      const int copy = mesh.coordinate("dp");
      std::map<int, executor::LocalStage> stages;
      std::vector<std::shared_ptr<Stack>> modules;
      std::vector<std::shared_ptr<Parallelized>> split;
      std::vector<at::Tensor> weights;
      for (const int stage : program.placement.stages_of(mesh.coordinate("pp"))) {
        const int each = kLayers / program.placement.num_stages();
        const auto module = std::make_shared<Stack>(stage * each, (stage + 1) * each, checkpointed);
        split.push_back(parallelize(
            *module, {{"*.in_proj", colwise_parallel()}, {"*.out_proj", rowwise_parallel()}}, mesh,
            "tp"));
        std::vector<std::shared_ptr<fsdp::Sharded>> units;
        for (const ModulePtr& layer : module->layers())
          units.push_back(fsdp::fully_shard(*layer, mesh, {"dp"}));
        stages[stage] = {executor::make_stage(module),
                         fsdp::fully_shard(*module, mesh, {"dp"})->data_parallel()};
        modules.push_back(module);
        for (const at::Tensor& weight : module->parameters()) weights.push_back(weight);
      }
      executor::Executor executor(
          program, std::move(stages), world,
          {.loss = [](const executor::Tensors& outputs) { return outputs[0].sum(); },
           .scale_grads = false,
           .device = tests::here(),
           .ranks = mesh.ranks({"pp"})});
      auto optimizer = optimizer_of(weights);
      for (int step = 0; step < kSteps; ++step) {
        optimizer.zero_grad();
        const auto result = executor.step({{input_of(step, copy)}, {}, {}});
        double loss = 0;
        for (const at::Tensor& each : result.losses) loss += each.item<double>();
        const double expected =
            reference.losses[static_cast<size_t>(step)][static_cast<size_t>(copy)];
        if (!result.losses.empty()) {
          EXPECT_NEAR(loss, expected, 1e-9 * std::abs(expected));
        }
        optimizer.step();
      }
      for (const auto& module : modules) {
        for (const auto& named : module->named_parameters()) {
          const at::Tensor &expected = whole[named.key()], &got = named.value();
          EXPECT_TRUE(at::allclose(expected, modules::full_tensor(got).cpu(), 1e-9, 1e-11))
              << named.key();
          ASSERT_TRUE(got.grad().defined()) << named.key();
          EXPECT_TRUE(at::allclose(expected.grad(), modules::full_tensor(got, got.grad()).cpu(),
                                   1e-9, 1e-11))
              << "gradient of " << named.key();
        }
      }
    };
    EXPECT_EQ(tests::run_ranks(8, run_rank), "") << (checkpointed ? "checkpointed" : "plain");
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, PpTp,
                         testing::ValuesIn(schedules::all_schedules().begin(),
                                           schedules::all_schedules().end()),
                         [](const auto& of) { return tests::name_of_schedule(*of.param); });

}  // namespace
}  // namespace pipewright::tp
