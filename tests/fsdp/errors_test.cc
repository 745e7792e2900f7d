// Misuse and failures: errors name the module, the parameter and its state.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "pipewright/fsdp/fully_shard.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/recording/recording_backend.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/named_wait.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::fsdp {
namespace {

using tests::errors_on_ranks;
using tests::expect_errors;
using tests::kReduce;
using tests::mlps;
using tests::ModulePtr;
using tests::on_ranks;
using tests::random_input;
using tests::Rank;
using tests::Sharding;

TEST(FullyShardErrors, Misuse) {
  expect_errors(2, "fully_shard: a second call for", [](Rank& self) {
    const ModulePtr module = tests::make_mlp(4, 2, 42);
    const auto unit = fully_shard(*module, self.group);
    (void)fully_shard(*module, self.group);
  });
  expect_errors(2, "parameter `scale`, Float [] on {here}, is a scalar", [](Rank& self) {
    torch::nn::Module module;
    module.register_parameter("scale", at::ones({}, tests::here()));
    (void)fully_shard(module, self.group);
  });
  expect_errors(2, "parameter `b`, Double [4] on {here}: expected the dtype and device of `a`",
                [](Rank& self) {
                  torch::nn::Module module;
                  module.register_parameter("a", at::ones({4}, tests::here()));
                  module.register_parameter("b", at::ones({4}, tests::here(at::kDouble)));
                  (void)fully_shard(module, self.group);
                });
  expect_errors(3, "dimension 1 does not divide evenly by 3 ranks", [](Rank& self) {
    torch::nn::Module module;
    module.register_parameter("w", at::ones({4, 4}, tests::here()));
    (void)fully_shard(module, self.group,
                      {.shard_placement_fn = [](const at::Tensor&) { return int64_t{1}; }});
  });
  expect_errors(4, "reshard_after_forward: expected a divisor of 4 ranks, got 3", [](Rank& self) {
    const ModulePtr module = tests::make_mlp(4, 2, 42);
    (void)fully_shard(*module, self.group, {.reshard_after_forward = 3});
  });
  for (const modules::MixedPrecisionPolicy& policy :
       {modules::MixedPrecisionPolicy{.output_dtype = at::kFloat},
        modules::MixedPrecisionPolicy{.cast_forward_inputs = false}}) {
    expect_errors(2, "ranks disagree", [&](Rank& self) {
      const ModulePtr module = tests::make_mlp(4, 2, 42);
      Options options;
      if (self.rank == 1) options.mixed_precision = policy;
      (void)fully_shard(*module, self.group, options);
    });
  }
  expect_errors(4, "expected a mesh, got a process group", [](Rank& self) {
    const ModulePtr module = tests::make_mlp(4, 2, 42);
    (void)fully_shard(*module, self.group, {.reshard_after_forward = 2});
  });
  expect_errors(
      2,
      "parameter `1.weight` of torch::nn::EmbeddingImpl: expected dense gradients, got the "
      "option sparse(true)",
      [](Rank& self) {
        using torch::nn::EmbeddingOptions;
        torch::nn::Sequential layers(torch::nn::Embedding(4, 2),
                                     torch::nn::Embedding(EmbeddingOptions(4, 2).sparse(true)));
        layers->to(tests::here());
        (void)fully_shard(*layers, self.group);
      });
  expect_errors(2, "parameter `weight` of torch::nn::EmbeddingBagImpl: expected dense gradients",
                [](Rank& self) {
                  torch::nn::EmbeddingBag bag(torch::nn::EmbeddingBagOptions(4, 2).sparse(true));
                  bag->to(tests::here());
                  (void)fully_shard(*bag, self.group);
                });
  // Tied across two groups: the error names both.
  expect_errors(2, "parameter `output.weight` is also `tokens.weight` of another group",
                [](Rank& self) {
                  const tests::TransformerArgs args{.layers = 1, .tied = true};
                  const ModulePtr module = tests::make_transformer(args, 42);
                  const auto tokens = fully_shard(*module->named_children()["tokens"], self.group);
                  (void)fully_shard(*module, self.group);
                });
  expect_errors(
      3,
      "ranks disagree: expected `layer0.weight`, Double [5, 4], along 0 as on rank 0, got "
      "`layer0.weight`, Double [6, 4], along 0 on rank 2",
      [](Rank& self) {
        const ModulePtr module = tests::make_two_linears({{4, self.rank == 2 ? 6 : 5}}, 42);
        (void)fully_shard(*module, self.group);
      });
}

// It trains nothing.
TEST(FullyShardErrors, NotAFrozenSparseEmbedding) {
  on_ranks(2, [](Rank& self) {
    torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(4, 2).sparse(true));
    embedding->to(tests::here(), at::kDouble);
    embedding->weight.set_requires_grad(false);
    const at::Tensor weight = random_input({4, 2}, 1);
    embedding->weight.copy_(weight);
    const auto unit = fully_shard(*embedding, self.group);
    const at::Tensor tokens = at::arange(3, tests::here(at::kLong));
    EXPECT_TRUE(at::equal(forward(embedding, tokens), weight.narrow(0, 0, 3)));
  });
}

// A function may ask for them too, which only backward sees.
TEST(FullyShardErrors, SparseGradients) {
  expect_errors(
      2, "gradient of parameter `weight` of the root: expected a dense tensor, got Sparse",
      [](Rank& self) {
        torch::nn::Embedding embedding(4, 2);
        embedding->to(tests::here());
        const auto unit = fully_shard(*embedding, self.group);
        const auto run = [&](const modules::Tensors& in) {
          return modules::Tensors{
              at::embedding(embedding->weight, in[0], -1, false, /*sparse=*/true)};
        };
        call(*embedding, run, {at::arange(3, tests::here(at::kLong))})[0].sum().backward();
      });
}

TEST(FullyShardErrors, UnsupportedBackwards) {
  expect_errors(2, "fully_shard: a backward with create_graph through the root", [](Rank& self) {
    const ModulePtr module = tests::make_mlp(4, 2, 42);
    const auto unit = fully_shard(*module, self.group);
    const at::Tensor x = random_input({2, 4}, 1).requires_grad_();
    (void)torch::autograd::grad({forward(module, x).sum()}, {x}, {}, true, /*create_graph=*/true);
  });
  expect_errors(2, "fully_shard: backward through a module whose unit no longer exists",
                [](Rank& self) {
                  const ModulePtr module = tests::make_mlp(4, 2, 42);
                  at::Tensor loss;
                  {
                    const auto unit = fully_shard(*module, self.group);
                    loss = forward(module, random_input({2, 4}, 1)).sum();
                  }
                  loss.backward();
                });
  expect_errors(2, "an earlier backward stopped on an error after its reductions had begun",
                [](Rank& self) {
                  const ModulePtr module = tests::make_mlps(4, 2, 42);
                  Sharding sharding(self, *module, mlps(2), {});
                  const auto step = [&](bool stops) {
                    const at::Tensor x = random_input({2, 4}, 1).requires_grad_();
                    if (stops) {
                      x.register_hook(
                          [](const at::TensorBase&) { throw std::runtime_error("a user's hook"); });
                    }
                    forward(module, x * 1).sum().backward();
                  };
                  EXPECT_THROW(step(true), std::runtime_error);
                  step(false);
                });
  expect_errors(2, "data_parallel() of `mlp0`, which is nested in another unit", [](Rank& self) {
    const ModulePtr module = tests::make_mlps(4, 1, 42);
    Sharding sharding(self, *module, mlps(1), {});
    (void)sharding.units[0]->data_parallel();
  });
  expect_errors(2, "is already sharded", [](Rank& self) {
    const ModulePtr module = tests::make_mlps(4, 1, 42);
    for (at::Tensor& weight : module->parameters()) weight.set_requires_grad(false);
    const auto whole = fully_shard(*module, self.group);
    (void)fully_shard(*module->parts()[0], self.group);
  });
}

TEST(FullyShardErrors, AChangedParameter) {
  expect_errors(2,
                "parameter `in_proj.weight` of `mlp0` was replaced: expected its shard, [8, 4], or "
                "the full parameter, [16, 4], got [5, 4]",
                [](Rank& self) {
                  const ModulePtr module = tests::make_mlps(4, 1, 42);
                  Sharding sharding(self, *module, mlps(1), {});
                  module->parameters()[2].set_data(at::ones({5, 4}, tests::here(at::kDouble)));
                  forward(module, random_input({2, 4}, 1));
                });
  expect_errors(2,
                "became Float on {here}: expected the dtype and device of `in_proj.weight`, Double",
                [](Rank& self) {
                  const ModulePtr module = tests::make_mlps(4, 1, 42);
                  Sharding sharding(self, *module, mlps(1), {});
                  module->parameters()[3].set_data(module->parameters()[3].to(at::kFloat));
                  forward(module, random_input({2, 4}, 1));
                });
  // While it is unsharded.
  expect_errors(2,
                "parameter `in_proj.weight` of the root, which is unsharded, was replaced: "
                "expected the Double [8, 4] on {here} that fully_shard put there, got Float [8, 4]",
                [](Rank& self) {
                  const ModulePtr module = tests::make_mlp(4, 2, 42);
                  const auto unit = fully_shard(*module, self.group);
                  unit->unshard();
                  module->to(at::kFloat);
                  unit->reshard();
                });
  // Accumulated gradients have another dtype.
  expect_errors(2, "while their gradients were accumulated: reduce the gradients first",
                [](Rank& self) {
                  const ModulePtr module = tests::make_mlp(4, 2, 42);
                  const auto unit = fully_shard(*module, self.group);
                  unit->set_requires_gradient_sync(false);
                  forward(module, random_input({2, 4}, 1)).sum().backward();
                  module->to(at::kFloat);
                  forward(module, random_input({2, 4}, 1).to(at::kFloat));
                });
}

TEST(FullyShardErrors, ForwardThatTheExecutorsProgramDoesNotAllow) {
  expect_errors(
      2,
      "fully_shard: forward of the root: expected the executor's program to have it unsharded, got "
      "`first.weight` sharded",
      [](Rank& self) {
        const ModulePtr module = tests::make_mlps(4, 1, 42);
        Sharding sharding(self, *module, mlps(1), {});
        const auto stage = sharding.root().data_parallel();
        stage->unshard();
        stage->wait_unshard();
        forward(module, random_input({2, 4}, 1));
        stage->reshard();
        forward(module, random_input({2, 4}, 1));
      });
}

// The other ranks get an error too if one fails.
TEST(FullyShardErrors, ARankThatFails) {
  const auto errors = errors_on_ranks(
      2,
      [](Rank& self) {
        const ModulePtr module = tests::make_mlps(4, 2, 42);
        Sharding sharding(self, *module, mlps(2), {});
        forward(module, random_input({2, 4}, 1)).sum().backward();
      },
      [](const comms::CallRecord& call) {
        comms::Fault fault;
        fault.refuse = call.rank == 1 && call.op == kReduce;
        return fault;
      },
      std::chrono::seconds(3));
  EXPECT_NE(errors[0].find("fully_shard: the "), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("injected"), std::string::npos) << errors[1];
}

// A rank whose peer does not come to the call is seen to wait in the comparison of modules.
TEST(FullyShardErrors, NamesAWaitInTheCall) {
  tests::expect_named_wait("_allgather_base", [](const comms::BackendPtr& group) {
    const ModulePtr module = tests::make_mlp(4, 2, 42);
    const auto unit = fully_shard(*module, group);
  });
}

// One of its layers may throw.
struct MayFail : tests::TestModule {
  MayFail() {
    for (const char* name : {"mlp0", "mlp1", "mlp2"})
      layers.push_back(register_module(name, tests::make_mlp(4, 2, 42 + layers.size())));
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = input;
    for (const ModulePtr& layer : layers) {
      const auto run = [&](const modules::Tensors& in) {
        if (failing == layer) {
          if (before_failing) before_failing();
          throw std::runtime_error("out of luck");
        }
        return modules::Tensors{layer->forward(in[0])};
      };
      x = modules::call(*layer, run, {x})[0];
    }
    return x;
  }
  std::vector<ModulePtr> layers;
  ModulePtr failing;
  std::function<void()> before_failing;
};

// After a forward that failed on one rank and ended on the other one, both have the same units
// gathered, so all may skip the batch and go on.
TEST(FullyShardErrors, ForwardThatFailsOnOneRank) {
  for (const bool trains : {true, false}) {
    for (const ReshardAfterForward& reshard :
         {ReshardAfterForward(true), ReshardAfterForward(false), ReshardAfterForward()}) {
      on_ranks(2, [&](Rank& self) {
        const auto plain = std::make_shared<MayFail>(), module = std::make_shared<MayFail>();
        tests::Parity parity(self, plain, module, tests::shards_of(self));
        const Sharding sharding(self, *module, mlps(3), {.reshard_after_forward = reshard});
        for (int iteration = 0; iteration < 4; ++iteration) {
          parity.zero_grad(iteration);
          parity.backward(tests::sum_of({2, 4}), iteration);
          parity.step();
          const c10::AutoGradMode mode(trains);
          const bool fails = self.rank == iteration % 2;
          if (fails) module->failing = module->layers.back();
          const at::Tensor skipped = random_input({2, 4}, 1);
          if (fails)
            EXPECT_THROW(modules::forward(module, skipped), std::runtime_error);
          else
            modules::forward(module, skipped);
          module->failing = nullptr;
        }
      });
    }
  }
}

// The other rank gathers the first layer, and not the next one, which is gathered ahead.
TEST(FullyShardErrors, AGatherThatFailsTooHidesNoError) {
  on_ranks(2, [](Rank& self) {
    const auto module = std::make_shared<MayFail>();
    std::vector<std::shared_ptr<Sharded>> units;
    for (const ModulePtr& layer : module->layers) units.push_back(fully_shard(*layer, self.group));
    units.push_back(fully_shard(*module, self.group));
    modules::forward(module, random_input({2, 4}, 1));  // learns the order
    if (self.rank == 1) return units[0]->unshard();
    module->failing = module->layers[0];
    module->before_failing = [&] { self.group->abort(); };
    try {
      modules::forward(module, random_input({2, 4}, 1));
      FAIL() << "expected an error";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "out of luck");
    }
  });
}

}  // namespace
}  // namespace pipewright::fsdp
