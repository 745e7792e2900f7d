// fully_shard and replicate on the test device: a plain copy's results, no race (checks.cc), and no
// host synchronisation within a step. tools/mutations removes waits and stashes, and expects this
// test to notice.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/ddp/comm_hooks.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/modules/clip_grad_norm.h"
#include "pipewright/modules/distribution.h"
#include "tests/ddp/wrap.h"
#include "tests/device/current.h"
#include "tests/device/device.h"
#include "tests/device/no_host_sync.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/mixed_reference.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright {
namespace {

using tests::expect_no_host_sync;
using tests::ModulePtr;
using tests::on_ranks;
using tests::Parity;
using tests::Rank;
using tests::Sharding;

// All weights are in checkpointed parts, whose own backwards accumulate their gradients.
class CheckpointedParts final : public tests::TestModule {
 public:
  CheckpointedParts() {
    for (const char* name : {"mlp0", "mlp1", "mlp2"})
      mlps_.push_back(register_module(name, tests::make_mlp(8, 4, 42 + mlps_.size())));
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = input;
    for (const ModulePtr& mlp : mlps_) {
      const auto part = [mlp](const std::vector<at::Tensor>& in) {
        return std::vector{modules::forward(mlp, in[0])};
      };
      x = autograd::checkpoint(part, {x})[0];
    }
    return x;
  }

 private:
  std::vector<ModulePtr> mlps_;
};

void train(Parity& parity) {
  for (int iteration = 0; iteration < 3; ++iteration) {
    parity.zero_grad(iteration);
    parity.backward(tests::sum_of({4, 8}), iteration);
    parity.step();
  }
}

// The outermost backward accumulates nothing, so the engine runs its end on the default stream.
TEST(FullyShard, AllWeightsAreInCheckpointedParts) {
  on_ranks(2, [](Rank& self) {
    const auto plain = std::make_shared<CheckpointedParts>();
    const auto module = std::make_shared<CheckpointedParts>();
    Parity parity(self, plain, module, tests::shards_of(self));
    const Sharding sharding(self, *module, tests::mlps(3), {.reshard_after_forward = true});
    train(parity);
  });
}

TEST(Replicate, AllWeightsAreInCheckpointedParts) {
  on_ranks(2, [](Rank& self) {
    const auto plain = std::make_shared<CheckpointedParts>();
    const auto module = std::make_shared<CheckpointedParts>();
    Parity parity(self, plain, module);
    const auto unit = ddp::replicate(*module, self.group, {.bucket_cap_mb = 0.001});
    train(parity);
  });
}

TEST(FullyShard, TrainsLikeAPlainCopy) {
  for (const tests::Checkpointed checkpointed :
       {tests::Checkpointed::kNot, tests::Checkpointed::kAround}) {
    for (const fsdp::ReshardAfterForward reshard :
         {fsdp::ReshardAfterForward(true), fsdp::ReshardAfterForward(false),
          fsdp::ReshardAfterForward(2)}) {
      on_ranks(4, [&](Rank& self) {
        const tests::TransformerArgs args{.layers = 3, .tied = false, .checkpointed = checkpointed};
        const ModulePtr plain = tests::make_transformer(args, 42);
        const ModulePtr module = tests::make_transformer(args, 42);
        Parity parity(self, plain, module, tests::shards_of(self));
        const Sharding sharding(self, *module, tests::blocks(3),
                                {.reshard_after_forward = reshard});
        for (int iteration = 0; iteration < 2; ++iteration) {
          parity.zero_grad(iteration);
          parity.backward(tests::sum_of_tokens({2, 8}, 8), iteration);
          parity.step();
        }
      });
    }
  }
}

// Inputs on the host arrive on the device of the parameters.
TEST(FullyShard, test_root_move_forward_input_to_device) {
  on_ranks(2, [](Rank& self) {
    torch::nn::Linear linear(4, 4);
    linear->to(tests::here());
    const auto unit = fsdp::fully_shard(*linear, self.group);
    const auto run = [&](const modules::Tensors& in) {
      for (const at::Tensor& input : in) EXPECT_EQ(input.device(), tests::here());
      return modules::Tensors{linear->forward(in[0] + in[1])};
    };
    const at::Tensor x = at::ones({2, 4});
    EXPECT_EQ(modules::call(*linear, run, {x, x})[0].device(), tests::here());
  });
}

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

// Shards along another dimension than 0 are gathered and reduced through copies.
TEST(FullyShard, ShardsAlongDimensionOne) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr plain = tests::make_mlps(8, 3, 42), module = tests::make_mlps(8, 3, 42);
    const auto placement = [](const at::Tensor& whole) -> int64_t { return whole.dim() - 1; };
    Parity parity(self, plain, module, tests::shards_of(self, placement));
    const Sharding sharding(self, *module, tests::mlps(3), {.shard_placement_fn = placement});
    for (int iteration = 0; iteration < 2; ++iteration) {
      parity.zero_grad(iteration);
      parity.backward(tests::sum_of({4, 8}), iteration);
      parity.step();
    }
  });
}

TEST(FullyShard, DoesNotSynchronizeTheHost) {
  std::barrier all(2);
  on_ranks(2, [&](Rank& self) {
    const ModulePtr module = tests::make_transformer({.layers = 3, .tied = false}, 42);
    const Sharding sharding(self, *module, tests::blocks(3), {.reshard_after_forward = true});
    torch::optim::AdamW optimizer(module->parameters());
    const at::Tensor tokens = tests::random_tokens({2, 8}, 8, 1);
    const auto step = [&] {
      optimizer.zero_grad();
      modules::forward(module, tokens).sum().backward();
      modules::clip_grad_norm_(module->parameters(), *self.group, 1.0);
      optimizer.step();
    };
    step();
    expect_no_host_sync(all, step);
  });
}

TEST(Replicate, TrainsLikeAPlainCopy) {
  for (const bool unused : {false, true}) {
    on_ranks(2, [&](Rank& self) {
      const ModulePtr plain = tests::make_mlps(8, 3, 42), module = tests::make_mlps(8, 3, 42);
      Parity parity(self, plain, module);
      const auto units = tests::wrap(*module, self.group,
                                     {.bucket_cap_mb = 0.001, .find_unused_parameters = unused});
      for (int iteration = 0; iteration < 3; ++iteration) {
        parity.zero_grad(iteration);
        parity.backward(tests::sum_of({4, 8}), iteration);
        parity.step();
      }
    });
  }
}

// Only for races: the results are rounded.
TEST(Replicate, CompressesGradients) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr module = tests::make_mlps(8, 3, 42);
    const auto units = tests::wrap(
        *module, self.group, {.bucket_cap_mb = 0.001, .comm_hook = ddp::bf16_compress_hook()});
    for (int iteration = 0; iteration < 2; ++iteration)
      module->forward(tests::random_input({4, 8}, 1)).sum().backward();
  });
}

constexpr modules::MixedPrecisionPolicy kFloatInDouble = {.param_dtype = at::kFloat,
                                                          .reduce_dtype = at::kDouble};

TEST(Replicate, DoesNotSynchronizeTheHost) {
  for (const modules::MixedPrecisionPolicy& policy : {{}, kFloatInDouble}) {
    std::barrier all(2);
    on_ranks(2, [&](Rank& self) {
      const ModulePtr module = tests::make_mlps(8, 3, 42);
      const auto units = tests::wrap(*module, self.group, {.mixed_precision = policy});
      torch::optim::AdamW optimizer(module->parameters());
      const at::Tensor input = tests::random_input({4, 8}, 1);
      const auto step = [&] {
        optimizer.zero_grad();
        modules::forward(module, input).sum().backward();
        optimizer.step();
      };
      step();  // rebuilds the buckets
      expect_no_host_sync(all, step);
    });
  }
}

// Copies in float are made and freed on the streams that use them.
TEST(Replicate, MixedPrecision) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr plain = tests::make_mlps(8, 3, 42), module = tests::make_mlps(8, 3, 42);
    tests::MixedReference reference(self, plain, tests::make_mlps(8, 3, 42), kFloatInDouble);
    const auto units = tests::wrap(*module, self.group, {.mixed_precision = kFloatInDouble});
    const auto plain_optimizer = tests::adam(*plain), optimizer = tests::adam(*module);
    for (int iteration = 0; iteration < 3; ++iteration) {
      reference.begin_step();
      optimizer->zero_grad(iteration % 2 == 0);
      for (const bool last : {false, true}) {
        const at::Tensor input = tests::random_input(
            {4, 8}, tests::data_seed(2 * iteration + (last ? 1 : 0), self.rank));
        reference.backward(input);
        units.back()->set_requires_gradient_sync(last);
        modules::forward(module, input).sum().backward();
      }
      reference.reduce();
      EXPECT_EQ(tests::difference(*plain, *module), "");
      plain_optimizer->step();
      optimizer->step();
    }
  });
}

// The group communicates on the device, where shards on the host are copied first.
TEST(FullyShard, FullTensorsOfOffloadedShards) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr plain = tests::make_mlp(4, 2, 42), module = tests::make_mlp(4, 2, 42);
    const auto unit =
        fsdp::fully_shard(*module, self.group, {.offload_policy = fsdp::CPUOffloadPolicy()});
    const auto want = plain->parameters(), got = module->parameters();
    for (size_t i = 0; i < want.size(); ++i) {
      const at::Tensor whole = modules::full_tensor(got[i]);
      EXPECT_TRUE(whole.is_cpu());
      EXPECT_TRUE(whole.equal(want[i].cpu()));
      modules::set_full_tensor(got[i], want[i] * 2);
      EXPECT_TRUE(modules::full_tensor(got[i]).equal(want[i].cpu() * 2));
    }
  });
}

TEST(FullyShard, AnOffloadedShardThatIsMovedIsAnError) {
  for (const std::string& error : tests::errors_on_ranks(2, [](Rank& self) {
         const ModulePtr module = tests::make_mlp(4, 2, 42);
         const auto unit =
             fsdp::fully_shard(*module, self.group, {.offload_policy = fsdp::CPUOffloadPolicy()});
         module->to(tests::here());
         modules::forward(module, tests::random_input({2, 4}, 1));
       })) {
    EXPECT_NE(error.find("`in_proj.weight` of the root was moved: expected it on the CPU, where "
                         "CPUOffloadPolicy stores shards, got it on "),
              std::string::npos)
        << error;
  }
}

}  // namespace
}  // namespace pipewright
