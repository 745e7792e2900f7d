// Shards on the host (CPUOffloadPolicy). On the CPU this checks the order of copies, on the test
// device also that nothing reads or writes what is on its way.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>

#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/modules/clip_grad_norm.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::fsdp {
namespace {

using tests::blocks;
using tests::here;
using tests::mlps;
using tests::ModulePtr;
using tests::on_ranks;
using tests::Parity;
using tests::random_input;
using tests::Rank;
using tests::Sharding;
using tests::shards_of;

void expect_on_host(const torch::nn::Module& module, bool pinned) {
  for (const auto& [name, weight] : module.named_parameters().pairs()) {
    EXPECT_TRUE(weight.is_cpu()) << name;
    EXPECT_EQ(weight.is_pinned(), pinned) << name;
    const at::Tensor& grad = weight.grad();
    if (grad.defined()) {
      EXPECT_TRUE(grad.is_cpu()) << name;
    }
  }
}

TEST(FullyShardOffload, test_train_parity_multi_group_cpu_offload_eager) {
  for (const bool pin : {true, false}) {
    for (const ReshardAfterForward reshard : {ReshardAfterForward(true), {false}}) {
      on_ranks(2, [&](Rank& self) {
        const tests::TransformerArgs args{.layers = 3, .vocabulary = 32, .tied = false};
        const ModulePtr plain = tests::make_transformer(args, 42);
        const ModulePtr module = tests::make_transformer(args, 42);
        Parity parity(self, plain, module, shards_of(self));
        const Sharding sharding(self, *module, blocks(3),
                                {.reshard_after_forward = reshard,
                                 .offload_policy = CPUOffloadPolicy{.pin_memory = pin}});
        expect_on_host(*module, pin && !here().is_cpu());
        for (int iteration = 0; iteration < 4; ++iteration) {
          parity.zero_grad(iteration);  // sets gradients to zeros in every second iteration
          parity.backward(tests::sum_of_tokens({3, 16}, 32), iteration);
          expect_on_host(*module, pin && !here().is_cpu());
          parity.step();
        }
        // Gradients on the host are clipped over a group of devices.
        const double norm =
            modules::clip_grad_norm_(module->parameters(), *self.group, 1e-3).item<double>();
        double squares = 0;
        for (const at::Tensor& weight : plain->parameters())
          squares += weight.grad().square().sum().item<double>();
        EXPECT_NEAR(norm, std::sqrt(squares), 1e-9 * norm);
        for (const at::Tensor& weight : module->parameters()) {
          EXPECT_TRUE(weight.grad().is_cpu());
          EXPECT_LE(weight.grad().norm().item<double>(), 1e-3);
        }
      });
    }
  }
}

// Gradients are accumulated on the device over microbatches that do not reduce, and added on the
// host over those that do.
TEST(FullyShardOffload, Accumulation) {
  for (const bool only_last : {true, false}) {
    for (const int replicas : {1, 2}) {
      on_ranks(4, [&](Rank& self) {
        const ModulePtr plain = tests::make_mlps(5, 3, 42), module = tests::make_mlps(5, 3, 42);
        Parity parity(self, plain, module, shards_of(self, nullptr, replicas));
        Sharding sharding(self, *module, mlps(3),
                          {.reshard_after_forward = true, .offload_policy = CPUOffloadPolicy()},
                          replicas);
        for (int iteration = 0; iteration < 2; ++iteration) {
          parity.zero_grad(iteration);
          for (int m = 0; m < 3; ++m) {
            sharding.root().set_requires_gradient_sync(m == 2 || !only_last);
            sharding.root().set_is_last_backward(m == 2);
            parity.backward(tests::sum_of({4, 5}), 10 * iteration + m);
          }
          parity.step();
        }
      });
    }
  }
}

// One rank has nothing to gather, and still copies. Casts change what is copied, not where.
TEST(FullyShardOffload, OneRankAndCasts) {
  on_ranks(1, [](Rank& self) {
    const ModulePtr module = tests::make_mlps(4, 2, 42);
    const Sharding sharding(
        self, *module, mlps(2),
        {.mixed_precision = {.param_dtype = at::kFloat}, .offload_policy = CPUOffloadPolicy()});
    for (const at::ScalarType dtype : {at::kDouble, at::kHalf}) {
      module->to(dtype);
      module->zero_grad();
      at::Tensor seen;
      const auto run = [&](const modules::Tensors& in) {
        seen = module->parameters()[0];
        EXPECT_EQ(seen.device(), here());
        EXPECT_EQ(seen.scalar_type(), at::kFloat);
        return modules::Tensors{module->forward(in[0])};
      };
      modules::call(*module, run, {random_input({2, 4}, 1)})[0].sum().backward();
      for (const at::Tensor& weight : module->parameters()) {
        EXPECT_TRUE(weight.is_cpu());
        EXPECT_EQ(weight.scalar_type(), dtype);
        EXPECT_EQ(weight.grad().scalar_type(), dtype);
      }
    }
  });
}

// A hook that runs after the accumulation sees the whole gradient.
TEST(FullyShardOffload, HooksSeeGradients) {
  struct Hook final : torch::autograd::PostAccumulateGradHook {
    explicit Hook(std::vector<at::Tensor>& grads) : seen(grads) {}
    void operator()(const torch::autograd::Variable& parameter) override {
      if (parameter.grad().defined()) seen.push_back(parameter.grad().clone());
    }
    std::vector<at::Tensor>& seen;
  };
  on_ranks(2, [](Rank& self) {
    const ModulePtr module = tests::make_mlp(4, 2, 42);
    const auto unit = fully_shard(*module, self.group, {.offload_policy = CPUOffloadPolicy()});
    const std::vector<at::Tensor> parameters = module->parameters();
    std::vector<at::Tensor> seen;
    for (const at::Tensor& weight : parameters)
      torch::autograd::impl::set_post_acc_grad_hooks(weight, std::make_unique<Hook>(seen));
    modules::forward(module, random_input({2, 4}, 1)).sum().backward();
    ASSERT_EQ(seen.size(), parameters.size());
    for (size_t i = 0; i < seen.size(); ++i) EXPECT_TRUE(at::equal(seen[i], parameters[i].grad()));
  });
}

}  // namespace
}  // namespace pipewright::fsdp
