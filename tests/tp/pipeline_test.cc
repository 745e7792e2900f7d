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
#include "tests/support/catalogue/catalogue.h"
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

// The norm of the difference, relative to that of `expected`.
double error(const at::Tensor& expected, const at::Tensor& got) {
  return ((expected - got).norm() / expected.norm()).item<double>();
}

struct Reference {
  std::shared_ptr<Stack> model = std::make_shared<Stack>(0, kLayers, false);
  std::vector<std::vector<double>> losses;  // by step and copy
  std::map<std::string, at::Tensor> first_grads;

  // The largest error of a gradient of the first step if one process computes in bf16.
  double bf16_error() const {
    Stack rounded(0, kLayers, false);
    rounded.to(at::kBFloat16);
    const auto copies = static_cast<int>(losses[0].size());
    for (int copy = 0; copy < copies; ++copy)
      (rounded.forward(input_of(0, copy).to(at::kBFloat16)).sum() / copies).backward();
    double largest = 0;
    for (const auto& named : rounded.named_parameters()) {
      const at::Tensor& expected = first_grads.at(named.key());
      largest = std::max(largest, error(expected, named.value().grad().to(at::kDouble)));
    }
    return largest;
  }
};

// The whole model on the data of all copies, with the mean of their losses.
Reference train_reference(int copies) {
  Reference reference;
  auto optimizer = optimizer_of(reference.model->parameters());
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    std::vector<double>& losses = reference.losses.emplace_back();
    for (int copy = 0; copy < copies; ++copy) {
      const at::Tensor loss = reference.model->forward(input_of(step, copy)).sum();
      (loss / copies).backward();
      losses.push_back(loss.item<double>());
    }
    for (const auto& named : reference.model->named_parameters())
      reference.first_grads.try_emplace(named.key(), named.value().grad().clone());
    optimizer.step();
  }
  return reference;
}

struct Ranks {
  std::vector<layout::MeshDim> mesh;  // pp 2, tp 2 and `data_parallel`
  std::vector<std::string> data_parallel;
};
const Ranks k3d = {{{"dp", 2}, {"pp", 2}, {"tp", 2}}, {"dp"}};
// Sharded replicas.
const Ranks k4d = {{{"pp", 2}, {"dp_replicate", 2}, {"dp_shard", 2}, {"tp", 2}},
                   {"dp_replicate", "dp_shard"}};

// Five steps of a pipeline of 2 ranks with tp 2 and some copies: losses and whole gradients of the
// first step, and whole parameters at the end, are those of the whole model; the losses of all
// steps and the last gradients too, unless they are rounded.
void expect_parity(const schedules::ScheduleSpec& spec, const Ranks& ranks, bool checkpointed,
                   const fsdp::Options& options, const std::vector<int>& offload = {}) {
  const bool is_rounded = options.mixed_precision.param_dtype.has_value();
  at::set_num_threads(1);
  const int num_ranks = layout::MeshLayout(ranks.mesh).size();
  const Reference reference = train_reference(num_ranks / 4);
  const auto whole = reference.model->named_parameters();
  // bf16: not much worse than one process, which rounds fewer sums.
  const double tolerance = is_rounded ? 2 * reference.bf16_error() : 1e-9;
  EXPECT_LE(tolerance, 0.3);
  const schedules::Shape shape{2, schedules::default_stages(spec, 2), kMicrobatches};
  ir::Diagnostics diagnostics;
  ir::Program program =
      schedule::lower(schedules::make_order(spec, shape), {}, &diagnostics).value();
  program.offload = offload;
  std::vector<comms::World> worlds = tests::make_worlds(num_ranks);
  const auto run_rank = [&](int rank) {
    comms::World& world = worlds[static_cast<size_t>(rank)];
    comms::Mesh mesh(world, ranks.mesh);
    const int copy = mesh.group(ranks.data_parallel)->getRank();
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
        units.push_back(fsdp::fully_shard(*layer, mesh, ranks.data_parallel, options));
      const auto compute = executor::make_stage(module);
      compute->set_least_offload(1);
      stages[stage] = {
          compute, fsdp::fully_shard(*module, mesh, ranks.data_parallel, options)->data_parallel()};
      modules.push_back(module);
      for (const at::Tensor& weight : module->parameters()) weights.push_back(weight);
    }
    const bool has_losses = stages.contains(program.placement.num_stages() - 1);
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
      ASSERT_EQ(result.losses.size(), has_losses ? kMicrobatches : 0u);
      if (has_losses && (step == 0 || !is_rounded)) {
        EXPECT_NEAR(loss, expected, tolerance * std::abs(expected));
      }
      for (const auto& module : modules) {
        for (const auto& named : module->named_parameters()) {
          if (step > 0) break;
          const at::Tensor& grad = named.value().grad();
          EXPECT_LE(error(reference.first_grads.at(named.key()),
                          modules::full_tensor(named.value(), grad).cpu()),
                    tolerance)
              << "first gradient of " << named.key();
        }
      }
      optimizer.step();
    }
    for (const auto& module : modules) {
      for (const auto& named : module->named_parameters()) {
        const at::Tensor &expected = whole[named.key()], &got = named.value();
        EXPECT_EQ(got.scalar_type(), at::kDouble) << named.key();
        EXPECT_LE(error(expected, modules::full_tensor(got).cpu()), tolerance) << named.key();
        ASSERT_TRUE(got.grad().defined()) << named.key();
        if (is_rounded) continue;
        EXPECT_LE(error(expected.grad(), modules::full_tensor(got, got.grad()).cpu()), tolerance)
            << "gradient of " << named.key();
      }
    }
  };
  EXPECT_EQ(tests::run_ranks(num_ranks, run_rank), "") << (checkpointed ? "checkpointed" : "plain");
}

class PpTp : public testing::TestWithParam<const schedules::ScheduleSpec*> {};

TEST_P(PpTp, test_3d_with_tp_dp_pp) {
  for (const bool checkpointed : {false, true}) expect_parity(*GetParam(), k3d, checkpointed, {});
}

// The schedules of PyTorch's test.
TEST(PpTpMixedPrecision, test_3d_with_tp_dp_pp) {
  for (const char* name :
       {"GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble"}) {
    SCOPED_TRACE(name);
    const fsdp::Options options = {
        .mixed_precision = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}};
    expect_parity(*schedules::find_schedule(name), k3d, false, options);
  }
}

// All four dimensions, on 16 ranks.
TEST(PpTpHsdp, test_4d) {
  for (const char* name : {"Interleaved1F1B", "ZBV"}) {
    SCOPED_TRACE(name);
    expect_parity(*schedules::find_schedule(name), k4d, false, {});
  }
}

// Stages that offload, with whole and with split backwards.
TEST(PpTpOffload, test_3d_with_tp_dp_pp) {
  for (const char* name : {"1F1B", "ZBV"}) {
    SCOPED_TRACE(name);
    expect_parity(*schedules::find_schedule(name), k3d, false, {}, {0, 1});
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, PpTp, testing::ValuesIn(tests::schedules_of_one_replica()),
                         [](const auto& of) { return tests::name_of_schedule(*of.param); });

}  // namespace
}  // namespace pipewright::tp
