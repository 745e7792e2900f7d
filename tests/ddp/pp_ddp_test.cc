// Pipelines of replicated stages, 2 x 2 ranks as threads: test_pp_ddp of PyTorch's
// test_composability.py, for every schedule of the catalogue, split backwards included.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "comms/mesh.h"
#include "comms/recording_backend.h"
#include "comms/thread_backend.h"
#include "ddp/replicate.h"
#include "executor/executor.h"
#include "executor/module_stage.h"
#include "schedule/lower.h"
#include "schedules/registry.h"
#include "tests/ddp/modules.h"
#include "tests/ranks/ranks.h"

namespace pipewright::ddp {
namespace {

constexpr int kLayers = 8, kDim = 10, kMicrobatches = 8, kSteps = 3;

// Layers `begin` to `end` of the model: Linear, relu, Linear each, in fp64.
struct Layers : torch::nn::Module {
  Layers(int begin, int end) {
    for (int layer = begin; layer < end; ++layer) {
      const auto weights = [&](const std::string& name, uint64_t seed, at::IntArrayRef sizes) {
        return register_parameter("layer" + std::to_string(layer) + name,
                                  tests::random_input(sizes, seed).to(at::kDouble) / 3);
      };
      const auto seed = static_cast<uint64_t>(10 * layer);
      all.push_back({weights("_w1", seed, {kDim, kDim}), weights("_b1", seed + 1, {kDim}),
                     weights("_w2", seed + 2, {kDim, kDim}), weights("_b2", seed + 3, {kDim})});
    }
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = input;
    for (const auto& w : all) x = x + at::linear(at::relu(at::linear(x, w[0], w[1])), w[2], w[3]);
    return x;
  }
  std::vector<std::vector<at::Tensor>> all;
};

at::Tensor input_of(int step, int dp_rank) {
  return tests::random_input({kMicrobatches, kDim},
                             static_cast<uint64_t>(100 + 10 * step + dp_rank))
      .to(at::kDouble);
}
at::Tensor target_of(int step, int dp_rank) { return input_of(step + 50, dp_rank); }

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return at::mse_loss(output, target);
}

// Both inputs through one model.
std::shared_ptr<Layers> reference() {
  auto model = std::make_shared<Layers>(0, kLayers);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int dp_rank = 0; dp_rank < 2; ++dp_rank)
      (loss_of(model->forward(input_of(step, dp_rank)), target_of(step, dp_rank)) / 2).backward();
    optimizer.step();
  }
  return model;
}

class PpDdp : public testing::TestWithParam<const schedules::ScheduleSpec*> {};

TEST_P(PpDdp, test_pp_ddp) {
  at::set_num_threads(1);
  const schedules::ScheduleSpec& spec = *GetParam();
  const schedules::Shape shape{2, schedules::default_stages(spec, 2), kMicrobatches};
  for (const int reduce_every : {kMicrobatches, 2}) {
    ir::Lowering policies;
    policies.reduce_every = reduce_every;
    ir::Diagnostics diagnostics;
    const ir::Program program =
        schedule::lower(schedules::make_order(spec, shape), policies, &diagnostics).value();
    const auto want = reference();
    const auto wanted = want->named_parameters();
    std::vector<comms::World> worlds = comms::thread_worlds(4);
    EXPECT_EQ(
        tests::run_ranks(
            4,
            [&](int rank) {
              comms::World& world = worlds[static_cast<size_t>(rank)];
              comms::Mesh mesh(world, {{"dp", 2}, {"pp", 2}});
              const auto log = std::make_shared<comms::CallLog>();
              const comms::BackendPtr dp = comms::record(mesh.group({"dp"}), log);
              std::map<int, executor::LocalStage> stages;
              std::vector<std::shared_ptr<Layers>> modules;
              std::vector<at::Tensor> weights;
              for (const int stage : program.placement.stages_of(mesh.coordinate("pp"))) {
                const int each = kLayers / shape.stages;
                const auto module = std::make_shared<Layers>(stage * each, (stage + 1) * each);
                stages[stage] = {executor::make_stage(module),
                                 replicate(*module, dp)->data_parallel()};
                modules.push_back(module);
                for (const at::Tensor& weight : module->parameters()) weights.push_back(weight);
              }
              const size_t num_stages = stages.size();
              executor::Executor executor(
                  program, std::move(stages), world,
                  {.loss =
                       [](const executor::Tensors& outputs, const executor::Tensors& targets) {
                         return loss_of(outputs[0], targets[0]);
                       },
                   .ranks = mesh.ranks({"pp"})});
              torch::optim::AdamW optimizer(weights, torch::optim::AdamWOptions(1e-2));
              const int dp_rank = mesh.coordinate("dp");
              for (int step = 0; step < kSteps; ++step) {
                optimizer.zero_grad(step % 2 == 0);
                log->clear();
                executor.step({{input_of(step, dp_rank)}, {}, {target_of(step, dp_rank)}});
                // One bucket a stage and REDUCE_GRAD, and no other collective.
                EXPECT_EQ(log->count("allreduce"),
                          static_cast<int64_t>(num_stages) * kMicrobatches / reduce_every);
                EXPECT_EQ(log->count("_allgather_base"), 0);
                optimizer.step();
              }
              for (const auto& module : modules) {
                for (const auto& named : module->named_parameters()) {
                  const at::Tensor& weight = wanted[named.key()];
                  EXPECT_TRUE(at::allclose(named.value(), weight, 1e-10, 1e-12)) << named.key();
                  EXPECT_TRUE(at::allclose(named.value().grad(), weight.grad(), 1e-10, 1e-12))
                      << "gradient of " << named.key();
                }
              }
            }),
        "");
  }
}

// One pipeline on both copies' data, and the same without copies: equal losses and gradients over
// five steps (test_replicate_pp and test_replicate_pp_grads of test_pp_composability.py).
TEST_P(PpDdp, test_replicate_pp) {
  at::set_num_threads(1);
  const schedules::ScheduleSpec& spec = *GetParam();
  const schedules::Shape shape{2, schedules::default_stages(spec, 2), kMicrobatches};
  ir::Diagnostics diagnostics;
  const ir::Program program =
      schedule::lower(schedules::make_order(spec, shape), {}, &diagnostics).value();
  struct Seen {
    std::vector<at::Tensor> losses;
    std::map<std::string, at::Tensor> grads;
  };
  const auto train = [&](int copies) {
    std::vector<Seen> seen(static_cast<size_t>(2 * copies));  // by rank
    std::vector<comms::World> worlds = comms::thread_worlds(2 * copies);
    EXPECT_EQ(
        tests::run_ranks(
            2 * copies,
            [&](int rank) {
              comms::Mesh mesh(worlds[static_cast<size_t>(rank)], {{"dp", copies}, {"pp", 2}});
              std::map<int, executor::LocalStage> stages;
              std::vector<std::shared_ptr<Layers>> modules;
              std::vector<at::Tensor> weights;
              for (const int stage : program.placement.stages_of(mesh.coordinate("pp"))) {
                const int each = kLayers / shape.stages;
                modules.push_back(std::make_shared<Layers>(stage * each, (stage + 1) * each));
                stages[stage].stage = executor::make_stage(modules.back());
                if (copies > 1)
                  stages[stage].data_parallel =
                      replicate(*modules.back(), mesh, {"dp"})->data_parallel();
                for (const at::Tensor& weight : modules.back()->parameters())
                  weights.push_back(weight);
              }
              executor::Executor executor(
                  program, std::move(stages), worlds[static_cast<size_t>(rank)],
                  {.loss =
                       [](const executor::Tensors& outputs, const executor::Tensors& targets) {
                         return loss_of(outputs[0], targets[0]);
                       },
                   .ranks = mesh.ranks({"pp"})});
              torch::optim::AdamW optimizer(weights, torch::optim::AdamWOptions(1e-2));
              Seen& mine = seen[static_cast<size_t>(rank)];
              for (int step = 0; step < 5; ++step) {
                optimizer.zero_grad();
                const auto result = executor.step({{input_of(step, 0)}, {}, {target_of(step, 0)}});
                mine.losses.insert(mine.losses.end(), result.losses.begin(), result.losses.end());
                for (const auto& module : modules) {
                  for (const auto& named : module->named_parameters())
                    mine.grads[named.key()] = named.value().grad().clone();
                }
                optimizer.step();
              }
            }),
        "");
    return seen;
  };
  const std::vector<Seen> alone = train(1), copied = train(2);
  for (size_t rank = 0; rank < copied.size(); ++rank) {
    const Seen &want = alone[rank % 2], &got = copied[rank];
    ASSERT_EQ(want.losses.size(), got.losses.size());
    for (size_t i = 0; i < want.losses.size(); ++i)
      EXPECT_TRUE(at::allclose(want.losses[i], got.losses[i], 1e-12, 1e-14));
    ASSERT_EQ(want.grads.size(), got.grads.size());
    for (const auto& [name, grad] : want.grads)
      EXPECT_TRUE(at::allclose(grad, got.grads.at(name), 1e-10, 1e-12)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, PpDdp,
                         testing::ValuesIn(schedules::all_schedules().begin(),
                                           schedules::all_schedules().end()),
                         [](const auto& of) {
                           std::string name(of.param->name);
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace pipewright::ddp
