// A backward that fails on one rank only, of sharded and of replicated modules without an executor:
// all ranks end with the first cause (docs/training.md, Errors), and go on after World::reset().
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/modules/distribution.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright {
namespace {

using tests::mlps;
using tests::ModulePtr;
using tests::Rank;
using tests::Sharding;

constexpr int kLayers = 3;

class MayFail final : public tests::TestModule {
 public:
  MayFail() {
    for (const char* name : {"mlp0", "mlp1", "mlp2"})
      layers_.push_back(register_module(name, tests::make_mlp(4, 2, 42 + layers_.size())));
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = input.detach().requires_grad_() * 1;
    for (int i = 0; i < kLayers; ++i) {
      may_fail(x, i);
      x = modules::forward(layers_[static_cast<size_t>(i)], x);
    }
    may_fail(x, kLayers);
    return x;
  }
  // Backward throws when it has passed the layers from this one on; -1: nowhere.
  int fails_before = -1;

 private:
  void may_fail(const at::Tensor& x, int layer) const {
    if (layer == fails_before)
      x.register_hook([](const at::TensorBase&) { throw std::runtime_error("out of luck"); });
  }

  std::vector<ModulePtr> layers_;
};

// What keeps the module wrapped, and a first use after a failure that is no modules::forward().
struct Wrapped {
  std::shared_ptr<void> keep;
  std::function<void()> use;
};
using Wrap = std::function<Wrapped(Rank&, MayFail&)>;
using PartOf = std::function<tests::Part(const Rank&)>;

// Trains; between two steps, one rank fails before, amid or after the reductions.
void train(int ranks, const Wrap& wrap, const PartOf& part) {
  tests::on_ranks(ranks, [&](Rank& self) {
    const auto plain = std::make_shared<MayFail>(), module = std::make_shared<MayFail>();
    tests::Parity parity(self, plain, module, part(self));
    const Wrapped wrapped = wrap(self, *module);
    const auto step = [&](int iteration) {
      parity.zero_grad(iteration);
      parity.backward(tests::sum_of({2, 4}), iteration);
      parity.step();
    };
    for (int place = 0; place <= kLayers; ++place) {
      step(place);
      const int culprit = place % ranks;
      if (self.rank == culprit) module->fails_before = place;
      std::string text;
      try {
        // A rank that does not notice in its backward does in the next forward.
        for (int i = 0; i < 2; ++i)
          modules::forward(module, tests::random_input({2, 4}, 1)).sum().backward();
      } catch (const std::exception& error) {
        text = self.world->failures().explain(self.world->failures().fail(error.what()));
      }
      EXPECT_TRUE(text.starts_with("rank " + std::to_string(culprit) + ": out of luck\n")) << text;
      module->fails_before = -1;
      self.world->reset();
      if (place % 2 == 0) {
        wrapped.use();
        continue;
      }
      for (const auto& [name, weight] : module->named_parameters().pairs()) {
        EXPECT_TRUE(at::allclose(modules::full_tensor(weight), plain->named_parameters()[name]))
            << name;
      }
    }
    step(kLayers + 1);
  });
}

Wrap sharded(const fsdp::Options& options, int replicas = 1) {
  return [=](Rank& self, MayFail& module) -> Wrapped {
    const auto sharding =
        std::make_shared<Sharding>(self, module, mlps(kLayers), options, replicas);
    const auto use = [unit = sharding->units[1]] {
      unit->unshard();
      unit->reshard();
    };
    return {sharding, use};
  };
}

PartOf shards(int replicas = 1) {
  return [=](const Rank& self) { return tests::shards_of(self, nullptr, replicas); };
}

TEST(FailedBackward, Sharded) {
  for (const bool reshard_after_forward : {true, false})
    train(2, sharded({.reshard_after_forward = reshard_after_forward}), shards());
}

TEST(FailedBackward, ShardedWithReplicas) {
  train(4, sharded({.reshard_after_forward = true}, 2), shards(2));
}

TEST(FailedBackward, Replicated) {
  const Wrap replicated = [](Rank& self, MayFail& module) -> Wrapped {
    std::vector<int> ranks(static_cast<size_t>(self.world->size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    const auto unit = ddp::replicate(module, self.world->make_group("ddp", ranks),
                                     {.bucket_cap_mb = 0, .first_bucket_cap_mb = 0});
    const auto use = [&module] { module.forward(tests::random_input({2, 4}, 1)).sum().backward(); };
    return {unit, use};
  };
  train(2, replicated, [](const Rank&) { return nullptr; });
}

}  // namespace
}  // namespace pipewright
