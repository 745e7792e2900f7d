// Rows of PyTorch's suites in which tensor parallelism meets fully_shard, replicate and activation
// checkpointing: a plain copy of the model, averaged by hand over the data-parallel ranks, is the
// judge of losses, gradients and parameters in every iteration.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/modules/distribution.h"
#include "pipewright/modules/forward.h"
#include "pipewright/tp/parallelize.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/recording/recording_backend.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"
#include "tests/tp/whole_model.h"

namespace pipewright::tp {
namespace {

using comms::Mesh;
using layout::MeshDim;
using tests::ModulePtr;
using tests::on_ranks;
using tests::Rank;

// PyTorch's MLPStack: three MLPs with hidden sizes of 3, 4 and 3 times `dim`.
class MlpStack : public tests::TestModule {
 public:
  MlpStack(int64_t dim, bool checkpointed) : checkpointed_(checkpointed) {
    for (const int64_t multiplier : {3, 4, 3}) {
      const std::string name = std::to_string(mlps_.size());
      mlps_.push_back(register_module(
          name, tests::make_mlp(dim, multiplier, 42 + static_cast<uint64_t>(mlps_.size()))));
    }
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = input;
    for (const ModulePtr& mlp : mlps_) {
      const auto function = [mlp](const std::vector<at::Tensor>& in) {
        return std::vector{modules::forward(mlp, in[0])};
      };
      x = checkpointed_ ? autograd::checkpoint(function, {x})[0] : function({x})[0];
    }
    return x;
  }
  std::vector<std::shared_ptr<torch::nn::Module>> parts() override {
    return {mlps_.begin(), mlps_.end()};
  }

 private:
  const bool checkpointed_;
  std::vector<ModulePtr> mlps_;
};

const Plan kPlan = {{"*.in_proj", colwise_parallel()}, {"*.out_proj", rowwise_parallel()}};

struct Setup {
  std::vector<MeshDim> mesh;
  std::vector<std::string> data_parallel;  // the mesh dimensions over which gradients are averaged
  // The layout of mlps 0's in_proj.weight, [3 dim, dim], which tp and fsdp shard along dimension 0.
  std::string layout;
  int64_t dim;
  bool checkpointed = false;
};
using Wrap = std::function<std::vector<std::shared_ptr<void>>(MlpStack&, Mesh&)>;

// Ten iterations of Adam. Data differs between data-parallel ranks only. All whole parameters and
// gradients are equal at first and at the end, and this rank's parts in each iteration.
void expect_parity(const Setup& setup, const Wrap& wrap) {
  int ranks = 1;
  for (const MeshDim& dim : setup.mesh) ranks *= dim.size;
  on_ranks(ranks, [&](Rank& self) {
    Mesh mesh(*self.world, setup.mesh);
    const auto plain = std::make_shared<MlpStack>(setup.dim, false);
    const auto module = std::make_shared<MlpStack>(setup.dim, setup.checkpointed);
    const auto data_parallel = mesh.group(setup.data_parallel);
    const auto tp = parallelize(*module, kPlan, mesh, "tp");
    const auto units = wrap(*module, mesh);
    EXPECT_EQ(modules::layouts(*module).at("0.in_proj.weight").layout.text(), setup.layout);
    expect_whole(*plain, *module, " at first");
    const auto plain_optimizer = tests::adam(*plain), optimizer = tests::adam(*module);
    for (int iteration = 0; iteration < 10; ++iteration) {
      plain_optimizer->zero_grad(iteration % 2 == 0);
      optimizer->zero_grad(iteration % 2 == 0);
      const at::Tensor input = tests::random_input(
          {8, setup.dim}, tests::data_seed(iteration, data_parallel->getRank()));
      const at::Tensor expected = modules::forward(plain, input).sum();
      const at::Tensor got = modules::forward(module, input).sum();
      EXPECT_TRUE(at::allclose(expected, got, 1e-9, 1e-11)) << iteration;
      expected.backward();
      got.backward();
      tests::average_grads(*plain, *data_parallel);
      expect_parts(*plain, *module, " after backward " + std::to_string(iteration));
      plain_optimizer->step();
      optimizer->step();
      expect_parts(*plain, *module, " after step " + std::to_string(iteration));
    }
    expect_whole(*plain, *module, " at the end");
  });
}

std::string sizes_of(int64_t dim) {
  return "[" + std::to_string(3 * dim) + ", " + std::to_string(dim) + "] ";
}

Wrap sharded_over(const std::vector<std::string>& dims, const fsdp::Options& options) {
  return [=](MlpStack& module, Mesh& mesh) {
    std::vector<std::shared_ptr<void>> units;
    for (const auto& mlp : module.parts())
      units.push_back(fsdp::fully_shard(*mlp, mesh, dims, options));
    units.push_back(fsdp::fully_shard(module, mesh, dims, options));
    return units;
  };
}

TEST(TensorParallel, test_2d_mlp_with_nd_mesh) {
  const std::string kSharded = "dp_replicate=1:replicate dp_shard=2:strided_shard(0,2)";
  for (const bool reshard : {false, true}) {
    for (const bool checkpointed : {false, true}) {
      for (const int64_t dim : {3, 5, 16, 17}) {
        expect_parity({.mesh = {{"pp", 1}, {"dp", 2}, {"tp", 2}},
                       .data_parallel = {"dp"},
                       .layout = sizes_of(dim) + kSharded + " tp=2:shard(0)",
                       .dim = dim,
                       .checkpointed = checkpointed},
                      sharded_over({"dp"}, {.reshard_after_forward = reshard}));
      }
    }
  }
  // PyTorch's mesh of 8 ranks: both pipeline ranks train the whole model.
  expect_parity({.mesh = {{"pp", 2}, {"dp", 2}, {"tp", 2}},
                 .data_parallel = {"dp"},
                 .layout = sizes_of(5) + kSharded + " tp=2:shard(0)",
                 .dim = 5},
                sharded_over({"dp"}, {.reshard_after_forward = true}));
}

TEST(TensorParallel, test_3d_mlp_with_nd_mesh) {
  for (const bool reshard : {false, true}) {
    for (const bool checkpointed : {false, true}) {
      for (const int64_t dim : {3, 5, 16, 17}) {
        expect_parity(
            {.mesh = {{"dp_replicate", 2}, {"dp_shard", 2}, {"tp", 2}},
             .data_parallel = {"dp_replicate", "dp_shard"},
             .layout = sizes_of(dim) + "dp_replicate=2:replicate dp_shard=2:strided_shard(0,2) "
                                       "tp=2:shard(0)",
             .dim = dim,
             .checkpointed = checkpointed},
            sharded_over({"dp_replicate", "dp_shard"}, {.reshard_after_forward = reshard}));
      }
    }
  }
}

TEST(TensorParallel, test_replicate_tp) {
  for (const bool checkpointed : {false, true}) {
    for (const int64_t dim : {3, 5, 16, 17}) {
      expect_parity({.mesh = {{"dp_replicate", 2}, {"tp", 2}},
                     .data_parallel = {"dp_replicate"},
                     .layout = sizes_of(dim) + "dp_replicate=2:replicate tp=2:shard(0)",
                     .dim = dim,
                     .checkpointed = checkpointed},
                    [](MlpStack& module, Mesh& mesh) {
                      std::vector<std::shared_ptr<void>> units;
                      for (const auto& mlp : module.parts())
                        units.push_back(ddp::replicate(*mlp, mesh, {"dp_replicate"}));
                      units.push_back(ddp::replicate(module, mesh, {"dp_replicate"}));
                      return units;
                    });
    }
  }
}

// More ranks than features: of 3 hidden units over 4 ranks the last has none.
TEST(TensorParallel, EmptyParts) {
  for (const int64_t dim : {1, 2}) {
    expect_parity({.mesh = {{"dp", 1}, {"tp", 4}},
                   .data_parallel = {"dp"},
                   .layout = sizes_of(dim) + "tp=4:shard(0)",
                   .dim = dim},
                  [](MlpStack&, Mesh&) { return std::vector<std::shared_ptr<void>>(); });
    expect_parity({.mesh = {{"dp", 2}, {"tp", 4}},
                   .data_parallel = {"dp"},
                   .layout = sizes_of(dim) +
                             "dp_replicate=1:replicate dp_shard=2:strided_shard(0,4) tp=4:shard(0)",
                   .dim = dim},
                  sharded_over({"dp"}, {.reshard_after_forward = true}));
  }
}

// One all-reduce per MLP in forward, and one in backward but for the first, whose input needs no
// gradient. A mesh dimension of one rank neither gathers nor reduces. Shards are on the host.
TEST(TensorParallel, test_tp_with_fsdp_offloading) {
  for (const bool pin : {true, false}) {
    on_ranks(4, [&](Rank& self) {
      comms::World recorded = self.world->wrapped(
          [&](comms::BackendPtr backend) { return comms::record(backend, self.log); });
      Mesh mesh(recorded, {{"dp", 1}, {"tp", 4}});
      const auto plain = std::make_shared<MlpStack>(16, false);
      const auto module = std::make_shared<MlpStack>(16, false);
      const auto tp = parallelize(*module, kPlan, mesh, "tp");
      const fsdp::Options options = {.reshard_after_forward = true,
                                     .offload_policy = fsdp::CPUOffloadPolicy{.pin_memory = pin}};
      const auto units = sharded_over({"dp"}, options)(*module, mesh);
      const auto expect_on_host = [&](const std::string& when) {
        for (const auto& named : module->named_parameters()) {
          const at::Tensor& weight = named.value();
          EXPECT_TRUE(weight.is_cpu()) << named.key() << when;
          EXPECT_EQ(weight.is_pinned(), pin && !tests::here().is_cpu()) << named.key() << when;
          EXPECT_TRUE(!weight.grad().defined() || weight.grad().is_cpu()) << named.key() << when;
        }
      };
      expect_on_host(" after the wrap");
      const auto plain_optimizer = tests::adam(*plain), optimizer = tests::adam(*module);
      for (int iteration = 0; iteration < 10; ++iteration) {
        const std::string when = " in iteration " + std::to_string(iteration);
        plain_optimizer->zero_grad(iteration % 2 == 0);
        optimizer->zero_grad(iteration % 2 == 0);
        const at::Tensor input = tests::random_input({4, 16}, tests::data_seed(iteration, 0));
        self.log->clear();
        const at::Tensor loss = modules::forward(module, input).sum();
        EXPECT_EQ(self.log->count("allreduce"), 3);
        EXPECT_EQ(self.log->bytes("allreduce"), 3 * 4 * 16 * 8);
        EXPECT_EQ(self.log->calls().size(), 3u);
        self.log->clear();
        loss.backward();
        EXPECT_EQ(self.log->count("allreduce"), 2);
        EXPECT_EQ(self.log->calls().size(), 2u);
        const at::Tensor expected = modules::forward(plain, input).sum();
        expected.backward();
        EXPECT_TRUE(at::allclose(expected, loss, 1e-9, 1e-11)) << when;
        expect_on_host(when);
        const auto parameters = module->named_parameters();
        const auto layouts = modules::layouts(*module);
        const auto expect_part = [&](const at::Tensor& whole, const at::Tensor& part,
                                     const std::string& name) {
          EXPECT_TRUE(is_close(part_of(whole, layouts.at(name)).cpu(), part)) << name << when;
        };
        for (const auto& named : plain->named_parameters())
          expect_part(named.value().grad(), parameters[named.key()].grad(), named.key());
        plain_optimizer->step();
        optimizer->step();
        for (const auto& named : plain->named_parameters())
          expect_part(named.value(), parameters[named.key()], named.key());
      }
    });
  }
}

// PyTorch's 2-D test of DDP: outputs, gradients and parameters, and the outputs after a step.
TEST(TensorParallel, test_2d_ddp) {
  on_ranks(4, [](Rank& self) {
    Mesh mesh(*self.world, {{"dp", 2}, {"tp", 2}});
    const auto plain = tests::make_two_linears({{10, 16}, {16, 10}}, 5);
    const auto module = tests::make_two_linears({{10, 16}, {16, 10}}, 5);
    const auto tp = parallelize(
        *module, {{"layer0", colwise_parallel()}, {"layer1", rowwise_parallel()}}, mesh, "tp");
    const auto unit = ddp::replicate(*module, mesh, {"dp"});
    torch::optim::Adam plain_optimizer(plain->parameters(), torch::optim::AdamOptions(3e-5));
    torch::optim::Adam optimizer(module->parameters(), torch::optim::AdamOptions(3e-5));
    const int copy = mesh.coordinate("dp");
    for (const auto& [rows, seed] : {std::pair{4, 1 + copy}, std::pair{16, 1004 + copy}}) {
      const at::Tensor input = tests::random_input({rows, 10}, static_cast<uint64_t>(seed));
      const at::Tensor expected = modules::forward(plain, input);
      const at::Tensor got = modules::forward(module, input);
      EXPECT_TRUE(at::allclose(expected, got, 1e-9, 1e-11)) << rows;
      expected.sum().backward();
      got.sum().backward();
      tests::average_grads(*plain, *self.by_hand);  // of all ranks
      plain_optimizer.step();
      optimizer.step();
      const auto parameters = module->named_parameters();
      for (const auto& named : plain->named_parameters()) {
        const at::Tensor& parameter = parameters[named.key()];
        EXPECT_TRUE(at::allclose(modules::full_tensor(parameter), named.value(), 1e-9, 1e-11))
            << named.key();
        EXPECT_TRUE(at::allclose(modules::full_tensor(parameter, parameter.grad()),
                                 named.value().grad(), 1e-9, 1e-11))
            << "the gradient of " << named.key();
      }
    }
  });
}

}  // namespace
}  // namespace pipewright::tp
