// When fully_shard gathers parameters, on the test device: beside the computation of other layers,
// after what the optimizer writes, and on which streams.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/fsdp/fully_shard.h"
#include "tests/device/current.h"
#include "tests/device/device.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright {
namespace {

using tests::ModulePtr;
using tests::on_ranks;
using tests::Parity;
using tests::Rank;
using tests::Sharding;

// Linear layers of one size, each a unit. Forward and backward of layer i launch the kernels
// "forward i" and "backward i".
class Layers final : public tests::TestModule {
 public:
  static constexpr int kCount = 5;
  int used = kCount;
  Layers() {
    for (int i = 0; i < kCount; ++i)
      layers_.push_back(register_module("mlp" + std::to_string(i), torch::nn::Linear(8, 8)));
    // All ranks have the same values, which a generator that their threads share would not give.
    const torch::NoGradGuard no_grad;
    at::Generator generator = at::detail::createCPUGenerator(42);
    for (at::Tensor& parameter : parameters()) parameter.uniform_(-0.3, 0.3, generator);
    to(tests::here(), at::kDouble);
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = input;
    for (int i = 0; i < used; ++i) {
      const std::string number = std::to_string(i);
      const auto run = [&](const modules::Tensors& in) {
        testdevice::launch("forward " + number, in, {}, [] {});
        const at::Tensor y = layers_[static_cast<size_t>(i)]->forward(in[0]);
        y.register_hook([number](const at::Tensor& grad) {
          testdevice::launch("backward " + number, {grad}, {}, [] {});
        });
        return modules::Tensors{y * 1};  // the unit's own hook, on its output, runs before this one
      };
      x = modules::call(*layers_[static_cast<size_t>(i)], run, {x})[0];
    }
    return x;
  }

 private:
  std::vector<torch::nn::Linear> layers_;
};

// The gather of a layer is posted before the layer before it computes, and does not wait for that
// layer: some seeds run it earlier. It never runs earlier than that, because two layers are
// gathered at a time.
TEST(FullyShard, GathersOverlapCompute) {
  int overlaps[2] = {};  // in forward and backward
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    testdevice::seed(seed);
    on_ranks(2, [](Rank& self) {
      const auto model = std::make_shared<Layers>();
      const Sharding sharding(self, *model, tests::mlps(Layers::kCount),
                              {.reshard_after_forward = true});
      for (const char* iteration : {"learns the order", "follows it"}) {
        testdevice::launch(iteration, {}, {}, [] {});
        const at::Tensor loss = modules::forward(model, tests::random_input({4, 8}, 1)).sum();
        testdevice::launch("between", {}, {}, [] {});
        loss.backward();
      }
    });
    testdevice::drain();
    EXPECT_EQ(testdevice::races(), std::vector<std::string>());
    std::vector<std::string> order = testdevice::execution_order(0);
    order.erase(order.begin(), std::ranges::find(order, "follows it"));
    const auto place = [&](const std::string& kernel) {
      const auto found = std::ranges::find(order, kernel);
      EXPECT_NE(found, order.end()) << kernel;
      return found - order.begin();
    };
    std::vector<std::ptrdiff_t> gathers;
    for (size_t i = 0; i < order.size(); ++i) {
      if (order[i].find("all-gather of 32 x Double") != std::string::npos)
        gathers.push_back(static_cast<std::ptrdiff_t>(i));
    }
    ASSERT_EQ(gathers.size(), 2U * Layers::kCount);
    std::vector<std::ptrdiff_t> computes;
    for (int i = 0; i < Layers::kCount; ++i)
      computes.push_back(place("forward " + std::to_string(i)));
    for (int i = Layers::kCount; i-- > 0;)
      computes.push_back(place("backward " + std::to_string(i)));
    for (size_t i = 0; i < gathers.size(); ++i) {
      EXPECT_LT(gathers[i], computes[i]) << seed;
      const size_t layer = i % Layers::kCount;
      if (layer > 0 && gathers[i] < computes[i - 1]) ++overlaps[i / Layers::kCount];
      if (layer > 1) {
        EXPECT_GT(gathers[i], computes[i - 2]) << seed;
      }
    }
  }
  for (const int count : overlaps) EXPECT_GT(count, 0);
}

// The backward of a layer does not wait for the reduction of the layer before it: some seeds run it
// earlier. The host waits for computation alone, because work that nobody waits for runs late.
TEST(FullyShard, ReductionsOverlapCompute) {
  int overlaps = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    testdevice::seed(seed);
    on_ranks(2, [](Rank& self) {
      const auto plain = std::make_shared<Layers>(), model = std::make_shared<Layers>();
      Sharding sharding(self, *model, tests::mlps(Layers::kCount), {.reshard_after_forward = true});
      const at::Tensor input = tests::random_input({4, 8}, 1);
      sharding.root().set_is_last_backward(false);
      testdevice::launch("begins", {}, {}, [] {});
      modules::forward(model, input).sum().backward();
      c10::Event computed(testdevice::kDeviceType);
      computed.record(testdevice::current_stream(self.rank));
      computed.synchronize();
      testdevice::launch("ends", {}, {}, [] {});
      sharding.root().set_is_last_backward(true);
      modules::forward(model, input).sum().backward();
      for (int i = 0; i < 2; ++i) plain->forward(input).sum().backward();
      tests::average_grads(*plain, *self.by_hand);
      EXPECT_EQ(tests::difference(*plain, *model, tests::shards_of(self)), "");
    });
    testdevice::drain();
    EXPECT_EQ(testdevice::races(), std::vector<std::string>()) << seed;
    std::vector<std::string> order = testdevice::execution_order(0);
    order.erase(order.begin(), std::ranges::find(order, "begins"));
    const auto is_reduction = [](const std::string& kernel) {
      return kernel.find("reduce-scatter") != std::string::npos;
    };
    for (int i = Layers::kCount; i-- > 0;) {
      const auto backward = std::ranges::find(order, "backward " + std::to_string(i));
      ASSERT_NE(backward, order.end());
      const auto reduced = std::count_if(order.begin(), backward, is_reduction);
      const int computed = Layers::kCount - 1 - i;
      EXPECT_LE(reduced, computed) << seed;
      overlaps += reduced < computed;
    }
  }
  EXPECT_GT(overlaps, 0);
}

// The backward waits for no all-reduce over replicas: with some seeds all of it runs before the
// first one. PyTorch's FSDP2 has a stream for them (all_reduce_stream).
TEST(FullyShard, AllReducesOverReplicasOverlapCompute) {
  int overlaps = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    testdevice::seed(seed);
    on_ranks(4, [](Rank& self) {
      constexpr int kReplicas = 2;
      const auto plain = std::make_shared<Layers>(), model = std::make_shared<Layers>();
      Sharding sharding(self, *model, tests::mlps(Layers::kCount), {.reshard_after_forward = true},
                        kReplicas);
      const at::Tensor input = tests::random_input({4, 8}, 1);
      for (int i = 0; i < 2; ++i) {  // the second adds to the gradients of the first
        testdevice::launch("begins " + std::to_string(i), {}, {}, [] {});
        modules::forward(model, input).sum().backward();
        plain->forward(input).sum().backward();
      }
      tests::average_grads(*plain, *self.by_hand);
      EXPECT_EQ(tests::difference(*plain, *model, tests::shards_of(self, nullptr, kReplicas)), "");
    });
    testdevice::drain();
    EXPECT_EQ(testdevice::races(), std::vector<std::string>()) << seed;
    std::vector<std::string> order = testdevice::execution_order(0);
    order.erase(order.begin(), std::ranges::find(order, "begins 1"));
    const auto last = std::ranges::find(order, "backward 0");
    ASSERT_NE(last, order.end());
    overlaps += std::none_of(order.begin(), last, [](const std::string& kernel) {
      return kernel.find("all-reduce") != std::string::npos;
    });
  }
  EXPECT_GT(overlaps, 0);
}

// Gathers wait for the optimizer, and for nothing that is computed after it: some seeds run the
// first one earlier. Nothing here waits for the device, which would order everything.
TEST(FullyShard, test_post_optim_event) {
  int overlaps = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    testdevice::seed(seed);
    on_ranks(2, [](Rank& self) {
      const auto model = std::make_shared<Layers>();
      Sharding sharding(self, *model, tests::mlps(Layers::kCount), {.reshard_after_forward = true});
      const at::Tensor input = tests::random_input({4, 8}, 1);
      modules::forward(model, input).sum().backward();
      {
        const torch::NoGradGuard no_grad;
        for (at::Tensor& shard : model->parameters()) shard.sub_(shard.grad());
      }
      const auto written = std::make_shared<c10::Event>(testdevice::kDeviceType);
      written->record(testdevice::current_stream(self.rank));
      sharding.root().set_post_optim_event(written);
      testdevice::launch("after the optimizer", {}, {}, [] {});
      modules::forward(model, input).sum().backward();
    });
    testdevice::drain();
    EXPECT_EQ(testdevice::races(), std::vector<std::string>()) << seed;
    const std::vector<std::string> order = testdevice::execution_order(0);
    int gathers = 0;
    for (const std::string& kernel : order) {
      if (kernel == "after the optimizer") break;
      gathers += kernel.find("all-gather of 32 x Double") != std::string::npos;
    }
    ASSERT_GE(gathers, 2 * Layers::kCount);  // of the first forward and backward
    overlaps += gathers > 2 * Layers::kCount;
  }
  EXPECT_GT(overlaps, 0);
}

// Ten steps of AdamW, each with its event: losses and parameters are a plain copy's. No host waits
// for the device before the end.
TEST(FullyShard, TrainsWithPostOptimEvents) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    testdevice::seed(seed);
    on_ranks(2, [seed](Rank& self) {
      const ModulePtr plain = tests::make_transformer({}, 42);
      const ModulePtr module = tests::make_transformer({}, 42);
      Sharding sharding(self, *module, tests::blocks(2), {});
      const auto plain_optimizer = tests::adam_w(*plain), optimizer = tests::adam_w(*module);
      const tests::Loss loss_of = tests::sum_of_tokens({2, 8}, 8);
      std::vector<at::Tensor> losses, expected;
      for (int iteration = 0; iteration < 10; ++iteration) {
        optimizer->zero_grad();
        losses.push_back(loss_of(module, iteration, self.rank));
        losses.back().backward();
        optimizer->step();
        const auto written = std::make_shared<c10::Event>(testdevice::kDeviceType);
        written->record(testdevice::current_stream(self.rank));
        sharding.root().set_post_optim_event(written);
        testdevice::launch("after the optimizer", {}, {}, [] {});
      }
      for (int iteration = 0; iteration < 10; ++iteration) {
        plain_optimizer->zero_grad();
        expected.push_back(loss_of(plain, iteration, self.rank));
        expected.back().backward();
        tests::average_grads(*plain, *self.by_hand);
        plain_optimizer->step();
      }
      for (size_t i = 0; i < losses.size(); ++i)
        EXPECT_TRUE(at::allclose(losses[i], expected[i], 1e-9, 1e-11)) << seed << " " << i;
      EXPECT_EQ(tests::difference(*plain, *module, tests::shards_of(self)), "") << seed;
    });
    testdevice::drain();
    EXPECT_EQ(testdevice::races(), std::vector<std::string>()) << seed;
  }
}

// Roots gather each on a stream of its own, or with a shared context on one, or with
// set_unshard_async_op on the current one.
TEST(FullyShard, test_share_comm_context) {
  enum class Gathers { kSeparate, kShared, kOnCurrentStream };
  const auto streams_of = [](Gathers gathers) {
    testdevice::seed(1 + static_cast<uint64_t>(gathers));
    on_ranks(2, [gathers](Rank& self) {
      std::vector<ModulePtr> plain, module;
      std::vector<std::shared_ptr<fsdp::Sharded>> units;
      std::vector<fsdp::Sharded*> roots;
      for (uint64_t i = 0; i < 3; ++i) {
        plain.push_back(tests::make_mlp(16, 4, i));
        module.push_back(tests::make_mlp(16, 4, i));
        units.push_back(fsdp::fully_shard(*module.back(), self.group));
        roots.push_back(units.back().get());
        roots.back()->set_unshard_async_op(gathers == Gathers::kOnCurrentStream);
      }
      if (gathers == Gathers::kShared) fsdp::share_comm_ctx(roots);
      at::Tensor expected = tests::random_input({4, 16}, 1), got = expected;
      for (size_t i = 0; i < 3; ++i) {
        expected = plain[i]->forward(expected);
        got = modules::forward(module[i], got);
      }
      EXPECT_TRUE(at::allclose(expected, got));
      expected.sum().backward();
      got.sum().backward();
      for (size_t i = 0; i < 3; ++i) {
        tests::average_grads(*plain[i], *self.by_hand);
        EXPECT_EQ(tests::difference(*plain[i], *module[i], tests::shards_of(self)), "");
      }
    });
    testdevice::drain();
    EXPECT_EQ(testdevice::races(), std::vector<std::string>());
    const testdevice::Lock lock(testdevice::machine().mutex);
    return testdevice::machine().last_stream_id[0];
  };
  const int64_t shared = streams_of(Gathers::kShared);
  EXPECT_EQ(streams_of(Gathers::kSeparate), shared + 2);
  EXPECT_EQ(streams_of(Gathers::kOnCurrentStream), shared - 1);
}

// A forward that ends earlier than the last one: what was gathered ahead is freed.
TEST(FullyShard, ForwardsOfSomeLayers) {
  on_ranks(2, [](Rank& self) {
    const auto plain = std::make_shared<Layers>();
    const auto module = std::make_shared<Layers>();
    Parity parity(self, plain, module, tests::shards_of(self));
    const Sharding sharding(self, *module, tests::mlps(Layers::kCount),
                            {.reshard_after_forward = true});
    for (int iteration = 0; iteration < 4; ++iteration) {
      plain->used = module->used = iteration % 2 == 0 ? Layers::kCount : 2;
      parity.zero_grad(iteration);
      parity.backward(tests::sum_of({4, 8}), iteration);
      parity.step();
    }
  });
}

}  // namespace
}  // namespace pipewright
