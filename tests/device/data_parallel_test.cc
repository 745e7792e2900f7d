// fully_shard and replicate on the test device: a plain copy's results, no race (checks.cc), and no
// host synchronisation within a step. tools/mutations removes waits and stashes, and expects this
// test to notice.
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/modules/clip_grad_norm.h"
#include "pipewright/modules/distribution.h"
#include "pipewright/modules/grad_scaler.h"
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

void train(Parity& parity, const tests::Loss& loss = tests::sum_of({4, 8})) {
  for (int iteration = 0; iteration < 3; ++iteration) {
    parity.zero_grad(iteration);
    parity.backward(loss, iteration);
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

// Runs what follows on a new stream, after what the current one has been given.
c10::StreamGuard on_new_stream(int device) {
  const c10::Stream stream = testdevice::new_stream(device);
  testdevice::order(testdevice::current_stream(device), stream);
  return c10::StreamGuard(stream);
}

// A weight's AccumulateGrad node keeps the stream on which it was made.
TEST(FullyShard, TrainsOnAnotherStreamThanItWasShardedOn) {
  on_ranks(2, [](Rank& self) {
    const tests::TransformerArgs args{.layers = 3, .tied = false};
    const ModulePtr plain = tests::make_transformer(args, 42);
    const ModulePtr module = tests::make_transformer(args, 42);
    Parity parity(self, plain, module, tests::shards_of(self));
    const Sharding sharding(self, *module, tests::blocks(3), {.reshard_after_forward = true});
    const c10::StreamGuard trains = on_new_stream(self.rank);
    train(parity, tests::sum_of_tokens({2, 8}, 8));
  });
}

TEST(Replicate, TrainsOnAnotherStreamThanItWasReplicatedOn) {
  on_ranks(2, [](Rank& self) {
    const tests::TransformerArgs args{.layers = 3, .tied = false};
    const ModulePtr plain = tests::make_transformer(args, 42);
    const ModulePtr module = tests::make_transformer(args, 42);
    Parity parity(self, plain, module);
    const auto unit = ddp::replicate(*module, self.group, {.bucket_cap_mb = 0.001});
    const c10::StreamGuard trains = on_new_stream(self.rank);
    train(parity, tests::sum_of_tokens({2, 8}, 8));
  });
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

TEST(Replicate, test_root_move_forward_input_to_device) {
  on_ranks(2, [](Rank& self) {
    torch::nn::Linear linear(4, 4);
    linear->to(tests::here());
    const auto unit = ddp::replicate(*linear, self.group);
    const auto run = [&](const modules::Tensors& in) {
      for (const at::Tensor& input : in) EXPECT_EQ(input.device(), tests::here());
      return modules::Tensors{linear->forward(in[0] + in[1])};
    };
    const at::Tensor x = at::ones({2, 4});
    EXPECT_EQ(modules::call(*linear, run, {x, x})[0].device(), tests::here());
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
  const modules::MixedPrecisionPolicy none;
  for (const auto& of :
       {std::pair(none, false), {kFloatInDouble, false}, {none, true}, {kFloatInDouble, true}}) {
    std::barrier all(2);
    on_ranks(2, [&](Rank& self) {
      const ModulePtr module = tests::make_mlps(8, 3, 42);
      const auto units = tests::wrap(
          *module, self.group, {.find_unused_parameters = of.second, .mixed_precision = of.first});
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

// A rank that did not use a parameter reads how many did. Nothing else makes its host wait.
TEST(Replicate, OnlyAnUnusedParameterMakesTheHostWait) {
  std::barrier all(2);
  on_ranks(2, [&](Rank& self) {
    const ModulePtr module = tests::make_mlps(8, 3, 42);
    const at::Tensor unused = module->register_parameter("unused", at::ones({8}, tests::here()));
    const auto units = tests::wrap(*module, self.group, {.find_unused_parameters = true});
    const at::Tensor input = tests::random_input({4, 8}, 1);
    const auto step = [&] {
      for (at::Tensor& parameter : module->parameters()) parameter.mutable_grad().reset();
      modules::forward(module, input).sum().backward();
    };
    step();  // rebuilds the buckets
    all.arrive_and_wait();
    std::map<std::string, int64_t> expected = testdevice::host_syncs();
    all.arrive_and_wait();
    step();
    all.arrive_and_wait();
    expected["copy to host"] += 2;  // once on each rank
    EXPECT_EQ(testdevice::host_syncs(), expected);
    EXPECT_FALSE(unused.grad().defined());
  });
}

// In PyTorch's way: one kernel for all gradients of a dtype, and one wait for what it has found.
TEST(GradScaler, UnscalesAllGradientsAtOnce) {
  on_ranks(1, [](Rank& self) {
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < 20; ++i) {
      const at::ScalarType dtype = i % 2 == 0 ? at::kFloat : at::kHalf;
      parameters.push_back(at::ones({3}, at::TensorOptions(dtype).device(tests::here())));
      parameters.back().mutable_grad() = at::full_like(parameters.back(), 6);
    }
    modules::GradScaler scaler(self.group, {.init_scale = 4});
    const std::string name = "aten::_amp_foreach_non_finite_check_and_unscale_";
    std::map<std::string, int64_t> kernels = testdevice::kernels();
    std::map<std::string, int64_t> syncs = testdevice::host_syncs();
    scaler.unscale_(parameters);
    EXPECT_EQ(testdevice::host_syncs(), syncs);
    int64_t launched = 0;
    for (const auto& [kernel, count] : testdevice::kernels()) launched += count - kernels[kernel];
    EXPECT_EQ(testdevice::kernels()[name] - kernels[name], 2);
    EXPECT_LE(launched, 2 + 2);  // 0 for what is found, and the reciprocal of the scale
    EXPECT_FALSE(scaler.found_inf());
    scaler.update();
    ++syncs["copy to host"];
    EXPECT_EQ(testdevice::host_syncs(), syncs);
    for (const at::Tensor& parameter : parameters)
      EXPECT_TRUE(parameter.grad().cpu().to(at::kFloat).equal(at::full({3}, 1.5)));
  });
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

// Only for races: hooks that fill a bucket run on the stream of the weights, the end of backward on
// that of the training.
TEST(Replicate, MixedPrecisionOnAnotherStreamThanItWasReplicatedOn) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr module = tests::make_mlps(8, 3, 42);
    const auto units = tests::wrap(*module, self.group, {.mixed_precision = kFloatInDouble});
    const c10::StreamGuard trains = on_new_stream(self.rank);
    for (int iteration = 0; iteration < 3; ++iteration)
      modules::forward(module, tests::random_input({4, 8}, 1)).sum().backward();
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
