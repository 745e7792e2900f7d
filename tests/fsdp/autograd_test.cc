// Models that use some of their outputs or modules, or run them with and without grad mode, and
// models of which a part is sharded and the rest replicated: rows of PyTorch's
// test_fully_shard_autograd.py, test_fully_shard_frozen.py and test_fully_shard_ignore_params.py.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "pipewright/ddp/replicate.h"
#include "pipewright/fsdp/fully_shard.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::fsdp {
namespace {

using tests::data_seed;
using tests::kReduce;
using tests::ModulePtr;
using tests::on_ranks;
using tests::Parity;
using tests::random_input;
using tests::Rank;
using tests::Sharding;
using tests::shards_of;
using tests::sum_of;

using Names = std::vector<std::string>;

const ReshardAfterForward kReshards[] = {true, false, 2};

// All ranks draw the same weights.
void draw(torch::nn::Module& module, uint64_t seed) {
  module.to(tests::here(), at::kDouble);
  const c10::NoGradGuard no_grad;
  for (at::Tensor& weight : module.parameters())
    weight.copy_(random_input(weight.sizes(), ++seed).mul_(0.3));
}

// PyTorch's DoubleLinear.
struct DoubleLinear : torch::nn::Module {
  DoubleLinear(int64_t dim, bool its_use_second)
      : use_second(its_use_second),
        lin1(register_module("lin1", torch::nn::Linear(dim, dim))),
        lin2(register_module("lin2", torch::nn::Linear(dim, dim))) {
    draw(*this, 42);
  }
  std::vector<at::Tensor> forward(const at::Tensor& x) {
    std::vector<at::Tensor> out = {at::relu(modules::forward(lin1, x))};
    if (use_second) out.push_back(at::relu(modules::forward(lin2, x)));
    return out;
  }
  const bool use_second;
  torch::nn::Linear lin1, lin2;
};

// The whole model, as a module with one output.
struct OfDouble : tests::TestModule {
  explicit OfDouble(bool use_second)
      : model(register_module("model", std::make_shared<DoubleLinear>(24, use_second))) {}
  at::Tensor forward(const at::Tensor& x) override {
    const std::vector<at::Tensor> out = modules::forward(model, x);
    return uses_both && out.size() > 1 ? out[0] * out[1] : out[0];
  }
  bool uses_both = true;
  std::shared_ptr<DoubleLinear> model;
};

// The second output is used in three iterations, and then no more.
TEST(FullyShardAutograd, test_unused_forward_output) {
  for (const ReshardAfterForward& reshard : kReshards) {
    on_ranks(4, [&](Rank& self) {
      const auto plain = std::make_shared<OfDouble>(true),
                 module = std::make_shared<OfDouble>(true);
      Parity parity(self, plain, module, shards_of(self));
      Sharding sharding(self, *module->model, {{"lin1"}}, {.reshard_after_forward = reshard});
      parity.train(sum_of({2, 24}), [&](int iteration) {
        plain->uses_both = module->uses_both = iteration < 3;
        for (const auto& unit : sharding.units) EXPECT_FALSE(unit->is_unsharded()) << iteration;
      });
    });
  }
}

// A unit that never runs. Its parameters get no gradients, and no step changes them.
TEST(FullyShardAutograd, test_unused_forward_module) {
  for (const ReshardAfterForward& reshard : kReshards) {
    on_ranks(4, [&](Rank& self) {
      const auto plain = std::make_shared<OfDouble>(false);
      const auto module = std::make_shared<OfDouble>(false);
      Parity parity(self, plain, module, shards_of(self));
      Sharding sharding(self, *module->model, {{"lin1"}, {"lin2"}},
                        {.reshard_after_forward = reshard});
      parity.train(sum_of({2, 24}), [&](int iteration) {
        for (const auto& unit : sharding.units) EXPECT_FALSE(unit->is_unsharded()) << iteration;
        EXPECT_FALSE(module->model->lin2->weight.grad().defined());
      });
    });
  }
}

// One of its layers is frozen, and the other one runs with grad mode on and off in one forward.
struct MixedForwards : tests::TestModule {
  MixedForwards()
      : layer_0(register_module("layer_0", torch::nn::Linear(5, 5))),
        layer_no_grad(register_module("layer_no_grad", torch::nn::Linear(5, 5))),
        layer_with_grad(register_module("layer_with_grad", torch::nn::Linear(5, 5))) {
    draw(*this, 42);
    for (at::Tensor& weight : layer_no_grad->parameters()) weight.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = modules::forward(layer_0, input);
    for (int i = 0; i < 3; ++i) {
      x = modules::forward(layer_no_grad, at::relu(modules::forward(layer_with_grad, x)));
      at::Tensor more;
      {
        const c10::NoGradGuard no_grad;
        more = at::relu(modules::forward(layer_with_grad, x));
      }
      x = x + more;
    }
    return x;
  }
  torch::nn::Linear layer_0, layer_no_grad, layer_with_grad;
};

TEST(FullyShardFrozen, test_multi_forward_mixed_requires_grad) {
  for (const ReshardAfterForward& reshard : kReshards) {
    on_ranks(4, [&](Rank& self) {
      const ModulePtr plain = std::make_shared<MixedForwards>();
      const ModulePtr module = std::make_shared<MixedForwards>();
      Parity parity(self, plain, module, shards_of(self));
      Sharding sharding(self, *module, {{"layer_0"}, {"layer_no_grad"}, {"layer_with_grad"}},
                        {.reshard_after_forward = reshard});
      parity.train(sum_of({8, 5}), [&](int) {
        for (const auto& unit : sharding.units) EXPECT_FALSE(unit->is_unsharded());
        self.log->clear();
      });
      EXPECT_EQ(self.log->count(kReduce), 2);  // of the last iteration; none for the frozen layer
    });
  }
}

// A(B(lin_b, C(lin_c), subtrahend), addend): A and C are replicated, and the rest of B is sharded.
struct C : torch::nn::Module {
  explicit C(int64_t dim) : lin_c(register_module("lin_c", torch::nn::Linear(dim, dim))) {}
  at::Tensor forward(const at::Tensor& x) { return lin_c(x); }
  torch::nn::Linear lin_c;
};
struct B : torch::nn::Module {
  explicit B(int64_t dim)
      : lin_b(register_module("lin_b", torch::nn::Linear(dim, dim))),
        module_c(register_module("module_c", std::make_shared<C>(dim))),
        subtrahend(register_parameter("subtrahend", at::ones({dim}))) {}
  at::Tensor forward(const at::Tensor& x) {
    return modules::forward(module_c, modules::forward(lin_b, x) - subtrahend).relu();
  }
  torch::nn::Linear lin_b;
  std::shared_ptr<C> module_c;
  at::Tensor subtrahend;
};
struct A : tests::TestModule {
  explicit A(int64_t dim)
      : module_b(register_module("module_b", std::make_shared<B>(dim))),
        addend(register_parameter("addend", at::ones({dim}))) {
    draw(*this, 42);
  }
  at::Tensor forward(const at::Tensor& x) override {
    return modules::forward(module_b, x + addend) * 2;
  }
  std::shared_ptr<B> module_b;
  at::Tensor addend;
};

TEST(FullyShardIgnoreParams, test_ddp_A_fsdp_B_ddp_C) {
  for (const bool c_is_a_part : {false, true}) {
    for (const bool a_is_first : {false, true}) {
      on_ranks(2, [&](Rank& self) {
        const auto plain = std::make_shared<A>(8), module = std::make_shared<A>(8);
        std::vector<at::Tensor> of_b;
        for (const auto& [name, weight] : module->module_b->named_parameters().pairs())
          if (!name.starts_with("module_c")) of_b.push_back(weight);
        const auto is_sharded = [](const std::string& name) {
          return name.starts_with("module_b.lin_b") || name == "module_b.subtrahend";
        };
        tests::OptimizerPtr plain_adam = tests::adam(*plain), adam = tests::adam(*module);
        std::vector<std::shared_ptr<ddp::Replicated>> replicated;
        const auto replicate = [&] {
          if (c_is_a_part) {
            replicated.push_back(ddp::replicate(*module->module_b->module_c, self.group));
          }
          replicated.push_back(ddp::replicate(*module, self.group, {.ignored_params = of_b}));
        };
        if (a_is_first) replicate();
        const Options options{.reshard_after_forward = true,
                              .ignored_params = module->module_b->module_c->parameters()};
        Sharding sharding(self, *module->module_b, {{"lin_b"}}, options);
        if (!a_is_first) replicate();
        EXPECT_EQ(sharding.root().parameter_names(), (Names{"subtrahend"}));
        for (int iteration = 0; iteration < 3; ++iteration) {
          plain_adam->zero_grad();
          adam->zero_grad();
          const at::Tensor x = random_input({4, 8}, data_seed(iteration, self.rank));
          const at::Tensor expected = plain->forward(x).sum();
          const at::Tensor got = modules::forward(module, x).sum();
          EXPECT_TRUE(at::allclose(expected, got, 1e-9, 1e-11));
          expected.backward();
          got.backward();
          tests::average_grads(*plain, *self.by_hand);
          plain_adam->step();
          adam->step();
          for (const auto& [name, weight] : module->named_parameters().pairs()) {
            const at::Tensor whole = plain->named_parameters()[name];
            const auto part = [&, sharded = is_sharded(name)](const at::Tensor& of) {
              return sharded ? shards_of(self)(of) : of;
            };
            EXPECT_TRUE(at::allclose(weight, part(whole), 1e-9, 1e-11)) << name;
            ASSERT_TRUE(weight.grad().defined()) << name;
            EXPECT_TRUE(at::allclose(weight.grad(), part(whole.grad()), 1e-9, 1e-11)) << name;
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace pipewright::fsdp
