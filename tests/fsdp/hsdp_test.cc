// Hybrid sharding: shards that have replicas. PyTorch's test_train_parity_hsdp and the rows of its
// other tests with a mesh of two dimensions; a plain copy averaged over all ranks is the judge.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "pipewright/comms/mesh.h"
#include "pipewright/fsdp/fully_shard.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::fsdp {
namespace {

using tests::data_seed;
using tests::difference;
using tests::mlps;
using tests::ModulePtr;
using tests::on_ranks;
using tests::Parity;
using tests::random_input;
using tests::Rank;
using tests::Sharding;
using tests::shards_of;
using tests::sum_of;

TEST(FullyShardHsdp, test_train_parity_hsdp) {
  constexpr int kMicrobatches = 3;
  for (const int replicas : {1, 2, 4}) {
    for (const ReshardAfterForward& reshard :
         {ReshardAfterForward(true), ReshardAfterForward(false)}) {
      for (const int64_t dim : {3, 16, 17}) {
        // On the device for the order of kernels, which the sizes do not change.
        if (tests::is_on_device() && dim < 17) continue;
        for (const bool checkpointed : {false, true}) {
          for (const auto& [only_last, offloads] :
               {std::pair{true, false}, std::pair{false, false}, std::pair{true, true},
                std::pair{false, true}}) {
            on_ranks(4, [&, only_last = only_last, offloads = offloads](Rank& self) {
              const ModulePtr plain = tests::make_mlps(dim, 3, 42);
              // Each rank has its own weights: the first rank's are broadcast.
              const ModulePtr module =
                  tests::make_mlps(dim, 3, 42 + static_cast<uint64_t>(self.rank), checkpointed);
              Parity parity(self, plain, module, shards_of(self, nullptr, replicas));
              Options options{.reshard_after_forward = reshard};
              if (offloads) options.offload_policy.emplace();
              Sharding sharding(self, *module, mlps(3), options, replicas);
              EXPECT_EQ(parity.difference(), "") << "at first";
              for (int iteration = 0; iteration < 3; ++iteration) {
                parity.zero_grad(iteration);
                for (int m = 0; m < kMicrobatches; ++m) {
                  if (only_last) {
                    sharding.root().set_requires_gradient_sync(m + 1 == kMicrobatches);
                  }
                  parity.backward(sum_of({8, dim}), 10 * iteration + m);
                }
                parity.step();
              }
            });
          }
        }
      }
    }
  }
}

// On a mesh of (2, 2): with set_requires_gradient_sync as many all-reduces as reduce-scatters, with
// set_requires_all_reduce the latter in every microbatch.
TEST(FullyShardHsdp, test_gradient_accumulation) {
  for (const tests::AccumulationRow& row : tests::accumulation_rows()) {
    for (const bool reduce_scatter_only : {false, true}) {
      on_ranks(4, [&](Rank& self) {
        tests::expect_accumulation(self, row, /*replicas=*/2, reduce_scatter_only);
      });
    }
  }
}

TEST(FullyShardHsdp, test_divide_factor) {
  for (const int replicas : {2, 4}) {
    for (const bool force_sum : {false, true}) {
      for (const double factor : {4.0, 8.0, 2.0}) {
        on_ranks(4, [&](Rank& self) {
          const ModulePtr plain = tests::make_mlp(4, 2, 42), module = tests::make_mlp(4, 2, 42);
          Sharding sharding(self, *module, {}, {}, replicas);
          sharding.root().set_gradient_divide_factor(factor);
          sharding.root().set_force_sum_reduction_for_comms(force_sum);
          const at::Tensor input = random_input({2, 4}, data_seed(0, self.rank));
          plain->forward(input).sum().backward();
          forward(module, input).sum().backward();
          tests::average_grads(*plain, *self.by_hand);
          for (const at::Tensor& weight : plain->parameters()) weight.grad().mul_(4 / factor);
          EXPECT_EQ(difference(*plain, *module, shards_of(self, nullptr, replicas)), "")
              << replicas << factor << force_sum;
        });
      }
    }
  }
}

// The same with mixed precision: the factor applies to the gradients in reduce_dtype.
TEST(FullyShardHsdp, test_divide_factor_with_mixed_precision) {
  for (const int replicas : {1, 2, 4}) {
    for (const double factor : {1.0, 8.0}) {
      on_ranks(4, [&](Rank& self) {
        const Options options = {
            .mixed_precision = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}};
        const ModulePtr averaged = tests::make_mlp(4, 2, 42), divided = tests::make_mlp(4, 2, 42);
        Sharding by_ranks(self, *averaged, {}, options, replicas);
        Sharding by_factor(self, *divided, {}, options, replicas);
        by_factor.root().set_gradient_divide_factor(factor);
        const at::Tensor input = random_input({2, 4}, data_seed(0, self.rank));
        for (const ModulePtr& module : {averaged, divided}) forward(module, input).sum().backward();
        const auto expected = averaged->parameters(), got = divided->parameters();
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_TRUE(at::allclose(got[i].grad() * (factor / 4), expected[i].grad(), 1e-6));
      });
    }
  }
}

// A parameter that one rank uses is reduced on all; one that no rank uses keeps no gradient.
TEST(FullyShardHsdp, UnusedParameters) {
  struct Choice : tests::TestModule {
    Choice() {
      for (const char* name : {"a", "b", "c"})
        weights.push_back(register_parameter(name, random_input({3}, 7)));
    }
    at::Tensor forward(const at::Tensor& x) override { return x * weights[used]; }
    std::vector<at::Tensor> weights;
    size_t used = 0;
  };
  on_ranks(4, [](Rank& self) {
    const auto plain = std::make_shared<Choice>(), module = std::make_shared<Choice>();
    plain->used = module->used = self.rank == 3 ? 1 : 0;
    Sharding sharding(self, *module, {}, {}, 2);
    for (const auto& each : {plain, module})
      forward(each, random_input({2, 3}, data_seed(0, self.rank))).sum().backward();
    tests::average_grads(*plain, *self.by_hand);
    EXPECT_EQ(difference(*plain, *module, shards_of(self, nullptr, 2)), "");
    EXPECT_FALSE(module->weights[2].grad().defined());
  });
}

// PyTorch's test_custom_hsdp_all_reduce_hook: shards over pairs, and a hook that averages over the
// other dimension.
TEST(FullyShardHsdp, test_all_reduce_hook) {
  on_ranks(4, [](Rank& self) {
    comms::Mesh mesh(*self.world, {{"between", 2}, {"within", 2}});
    const int pair = mesh.coordinate("between");
    const auto linear =
        std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(4, 2).bias(false));
    linear->to(tests::here());
    const auto unit = fully_shard(*linear, mesh, {"within"}, {.sync_module_states = false});
    const comms::BackendPtr between = mesh.group({"between"});
    int calls = 0;
    unit->set_all_reduce_hook([&](const at::Tensor& grads) {
      ++calls;
      std::vector<at::Tensor> sum = {grads};
      c10d::AllreduceOptions average;
      average.reduceOp = c10d::ReduceOp::AVG;
      between->allreduce(sum, average)->wait();
    });
    forward(linear, at::full({1, 4}, pair + 1.0F, tests::here())).sum().backward();
    EXPECT_EQ(calls, 1);
    EXPECT_TRUE(at::equal(linear->weight.grad(), at::full({1, 4}, 1.5F, tests::here())));
  });
}

TEST(FullyShardHsdp, Errors) {
  const auto expect = [](const std::string& what, const std::function<void(Rank&)>& body) {
    tests::expect_errors(4, what, body);
  };
  expect("one to replicate over and one to shard over, got 3 dimensions", [](Rank& self) {
    comms::Mesh mesh(*self.world, {{"a", 2}, {"b", 2}, {"c", 1}});
    const ModulePtr module = tests::make_mlp(4, 2, 42);
    (void)fully_shard(*module, mesh, {"a", "b", "c"});
  });
  // One rank differs: all get the error, those of its shards and its replicas and the rest.
  expect("ranks disagree", [](Rank& self) {
    comms::Mesh mesh(*self.world, {{"replicate", 2}, {"shard", 2}});
    const ModulePtr module = tests::make_two_linears({{4, self.rank == 2 ? 6 : 5}}, 42);
    (void)fully_shard(*module, mesh, {"replicate", "shard"});
  });
}

}  // namespace
}  // namespace pipewright::fsdp
