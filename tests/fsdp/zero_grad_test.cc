// What zero_grad() does after a backward whose gradients are not reduced, or not completely, and so
// are not in .grad yet. A plain copy, whose gradients all are, is the judge.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "pipewright/fsdp/fully_shard.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::fsdp {
namespace {

using tests::mlps;
using tests::ModulePtr;
using tests::on_ranks;
using tests::Parity;
using tests::random_input;
using tests::Rank;
using tests::Sharding;
using tests::shards_of;
using tests::sum_of;

// Runs a backward that throws, frees what it has gathered, and throws again.
void stop_backward(const Sharding& sharding, const at::Tensor& loss) {
  try {
    loss.backward();
  } catch (...) {
    for (const auto& unit : sharding.units) unit->reshard();
    throw;
  }
}

// What keeps the gradients of a backward out of .grad.
enum class Held { kNotReduced, kSomeUnitsNotReduced, kNotAllReduced, kNotAwaited };

void hold(Sharding& sharding, Held held, bool holds) {
  Sharded& root = sharding.root();
  switch (held) {
    case Held::kNotReduced:
      return root.set_requires_gradient_sync(!holds);
    case Held::kSomeUnitsNotReduced:
      return sharding.units[0]->set_requires_gradient_sync(!holds);
    case Held::kNotAllReduced:
      return root.set_requires_all_reduce(!holds);
    case Held::kNotAwaited:
      return root.set_is_last_backward(!holds);
  }
}

// What the caller does with the gradients of a module between two backwards.
using Clear = void (*)(torch::nn::Module&);

// Two backwards before `clear`, and two after it.
void expect_parity(Held held, Clear clear, const Options& options = {}) {
  const int replicas = held == Held::kNotAllReduced ? 2 : 1;
  on_ranks(2 * replicas, [&](Rank& self) {
    const ModulePtr plain = tests::make_mlps(4, 2, 42), module = tests::make_mlps(4, 2, 42);
    Parity parity(self, plain, module, shards_of(self, nullptr, replicas));
    Sharding sharding(self, *module, mlps(2), options, replicas);
    int number = 0;
    const auto backward = [&](bool holds) {
      hold(sharding, held, holds);
      parity.backward(sum_of({2, 4}), number++);
    };
    for (int iteration = 0; iteration < 3; ++iteration) {
      parity.zero_grad(iteration);
      backward(true);
      backward(true);
      for (const ModulePtr& each : {plain, module}) clear(*each);
      backward(true);
      backward(false);
      parity.step();
    }
  });
}

void expect_parity_of_all(Clear clear) {
  for (const Held held :
       {Held::kNotReduced, Held::kSomeUnitsNotReduced, Held::kNotAllReduced, Held::kNotAwaited}) {
    SCOPED_TRACE(static_cast<int>(held));
    expect_parity(held, clear);
  }
}

TEST(FullyShardZeroGrad, ClearsGradientsThatAreNotReduced) {
  expect_parity_of_all([](torch::nn::Module& module) { module.zero_grad(); });
}

TEST(FullyShardZeroGrad, SetsThemToZero) {
  expect_parity_of_all([](torch::nn::Module& module) { module.zero_grad(/*set_to_none=*/false); });
}

TEST(FullyShardZeroGrad, ClearsThoseOfAnOptimizer) {
  expect_parity_of_all(
      [](torch::nn::Module& module) { tests::adam(module)->zero_grad(/*set_to_none=*/false); });
}

TEST(FullyShardZeroGrad, ClearsThoseOfSomeParameters) {
  expect_parity_of_all([](torch::nn::Module& module) {
    const auto parameters = module.parameters();
    for (size_t i = 0; i < parameters.size(); i += 2) parameters[i].mutable_grad().reset();
    parameters[1].mutable_grad().zero_();
  });
}

// Another tensor as .grad counts as the gradients so far.
TEST(FullyShardZeroGrad, ReplacesThem) {
  expect_parity_of_all([](torch::nn::Module& module) {
    for (const at::Tensor& parameter : module.parameters())
      parameter.mutable_grad() = at::ones_like(parameter.grad());
  });
}

TEST(FullyShardZeroGrad, IsNotCalled) {
  expect_parity_of_all([](torch::nn::Module&) {});
}

TEST(FullyShardZeroGrad, ClearsThoseOnTheHost) {
  for (const bool to_none : {true, false}) {
    expect_parity(Held::kNotReduced,
                  to_none ? Clear([](torch::nn::Module& module) { module.zero_grad(true); })
                          : Clear([](torch::nn::Module& module) { module.zero_grad(false); }),
                  {.offload_policy = CPUOffloadPolicy()});
  }
}

// Gradients are equal bit by bit to those of a model in which the first backward has not been.
TEST(FullyShardZeroGrad, LeavesNoTrace) {
  for (const bool to_none : {true, false}) {
    on_ranks(2, [&](Rank& self) {
      const ModulePtr fresh = tests::make_mlps(4, 2, 42), module = tests::make_mlps(4, 2, 42);
      Sharding of_fresh(self, *fresh, mlps(2), {}), of_module(self, *module, mlps(2), {});
      const at::Tensor x = random_input({2, 4}, 1), discarded = random_input({2, 4}, 2);
      of_module.root().set_requires_gradient_sync(false);
      forward(module, discarded).sum().backward();
      module->zero_grad(to_none);
      of_module.root().set_requires_gradient_sync(true);
      for (const ModulePtr& each : {fresh, module}) forward(each, x).sum().backward();
      for (size_t i = 0; i < module->parameters().size(); ++i) {
        EXPECT_TRUE(at::equal(module->parameters()[i].grad(), fresh->parameters()[i].grad())) << i;
      }
    });
  }
}

// The layer that only rank 0 uses, before and after.
TEST(FullyShardZeroGrad, WithParametersThatOneRankUses) {
  struct Model : tests::TestModule {
    Model() {
      for (const char* name : {"a", "b"})
        weights.push_back(register_parameter(name, random_input({4}, 1 + weights.size())));
    }
    at::Tensor forward(const at::Tensor& x) override {
      return uses_both ? x * weights[0] * weights[1] : x * weights[0];
    }
    std::vector<at::Tensor> weights;
    bool uses_both = false;
  };
  for (const Held held : {Held::kNotReduced, Held::kNotAllReduced, Held::kNotAwaited}) {
    const int replicas = held == Held::kNotAllReduced ? 2 : 1;
    on_ranks(2 * replicas, [&](Rank& self) {
      const auto plain = std::make_shared<Model>(), module = std::make_shared<Model>();
      for (const auto& each : {plain, module}) each->to(tests::here());
      Parity parity(self, plain, module, shards_of(self, nullptr, replicas));
      Sharding sharding(self, *module, {}, {}, replicas);
      for (const bool after : {false, true}) {
        parity.zero_grad(0);
        const auto backward = [&](int number, bool uses_both) {
          for (const auto& each : {plain, module}) each->uses_both = uses_both && self.rank == 0;
          parity.backward(sum_of({2, 4}), number);
        };
        hold(sharding, held, true);
        backward(0, true);
        for (const ModulePtr& each : {ModulePtr(plain), ModulePtr(module)}) each->zero_grad();
        hold(sharding, held, false);
        backward(1, after);
        parity.step();
        EXPECT_EQ(module->weights[1].grad().defined(), after);
      }
    });
  }
}

// The rest of the gradient is not there to be written to.
TEST(FullyShardZeroGrad, AnotherWriteIsAnError) {
  for (const double factor : {0.5, 0.0}) {
    tests::expect_errors(
        2,
        "fully_shard: the .grad of parameter `in_proj.weight` of `mlp1` was written to while other "
        "gradients of it were not reduced",
        [&](Rank& self) {
          const ModulePtr module = tests::make_mlps(4, 2, 42);
          Sharding sharding(self, *module, mlps(2), {});
          sharding.root().set_requires_gradient_sync(false);
          forward(module, random_input({2, 4}, 1)).sum().backward();
          for (const at::Tensor& parameter : module->parameters()) parameter.grad().mul_(factor);
          stop_backward(sharding, forward(module, random_input({2, 4}, 1)).sum());
        });
  }
}

// Gradients that are cleared are no longer in the way of a cast.
TEST(FullyShardZeroGrad, ThenACast) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr module = tests::make_mlp(4, 2, 42);
    const auto unit = fully_shard(*module, self.group);
    unit->set_requires_gradient_sync(false);
    forward(module, random_input({2, 4}, 1)).sum().backward();
    module->zero_grad();
    module->to(at::kFloat);
    unit->set_requires_gradient_sync(true);
    forward(module, random_input({2, 4}, 1).to(at::kFloat)).sum().backward();
    EXPECT_EQ(module->parameters()[0].grad().scalar_type(), at::kFloat);
  });
}

}  // namespace
}  // namespace pipewright::fsdp
