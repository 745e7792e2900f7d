// Memory and copies per rank, after PyTorch's test_fully_shard_memory.py.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>

#include "pipewright/fsdp/fully_shard.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/meter/meter.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::fsdp {
namespace {

using tests::mlps;
using tests::ModulePtr;
using tests::on_first_rank_alone;
using tests::on_ranks;
using tests::random_input;
using tests::Rank;
using tests::Sharding;

// Limits in terms of the bytes of all shards, of one layer, and of the parameters outside layers.
// Measured over both ranks together, because one thread may free what the other has allocated. On a
// device only its memory counts: with CPUOffloadPolicy shards, their gradients and the optimizer's
// state need none there.
void expect_training_memory(bool reshard, bool offload) {
  constexpr int kLayers = 6, kRanks = 2;
  const bool on_device = tests::is_on_device();
  const tests::Meter meter(tests::device_type());
  on_ranks(kRanks, [&](Rank& self) {
    const tests::Meter counts_here = tests::Meter::together_with(meter);
    const auto measure = [&](const std::function<void()>& check) {
      on_first_rank_alone(self, check);
    };
    const ModulePtr module = tests::make_mlps(64, kLayers, 42);
    int64_t all = 0, rest = 0, largest = 0;
    for (const auto& [name, weight] : module->named_parameters().pairs()) {
      const auto bytes = kRanks * static_cast<int64_t>(weight.nbytes());
      all += bytes;
      largest = std::max(largest, bytes);
      if (name.starts_with("first")) rest += bytes;
    }
    const int64_t layer = (all - rest) / kLayers;
    const int64_t shards = offload && on_device ? 0 : all / kRanks;
    // The shards of two layers before they are gathered, and after they have been reduced.
    const int64_t moved = offload ? 2 * layer : 0;
    // Activations, alignment, and the thread backend's buffer for one parameter.
    const int64_t slack = kRanks * (16 << 10) + largest;
    fsdp::Options options = {.reshard_after_forward = reshard};
    if (offload) options.offload_policy = CPUOffloadPolicy();
    Sharding sharding(self, *module, mlps(kLayers), options);
    measure([&] { EXPECT_LE(meter.bytes(), shards + slack); });
    const tests::OptimizerPtr optimizer = tests::adam(*module);
    for (int iteration = 0; iteration < 3; ++iteration) {
      int64_t before = 0;
      measure([&] {
        before = meter.bytes();
        meter.restart_peak();
      });
      at::Tensor loss = forward(module, random_input({1, 64}, 1)).sum();
      measure([&] {
        // The full parameters: all of them, or if layers are freed those of one layer, of the next
        // one and of the root.
        EXPECT_LE(meter.peak() - before, (reshard ? 2 * layer + rest : all) + moved + slack);
        meter.restart_peak();
      });
      loss.backward();
      loss.reset();
      measure([&] {
        // One more layer gathered ahead; the gradients of one layer being reduced, of one being
        // computed, and a second copy of the first of these; and the gradients of the shards.
        EXPECT_LE(meter.peak() - before,
                  (reshard ? 2 * layer + rest : all) + 3 * layer + rest + shards + moved + slack);
        EXPECT_LE(meter.bytes() - before, shards + slack);
      });
      optimizer->step();
      measure([&] { EXPECT_LE(meter.bytes(), 4 * shards + slack); });
      optimizer->zero_grad();
      measure([&] { EXPECT_LE(meter.bytes(), 3 * shards + slack); });
    }
  });
}

TEST(FullyShardMemory, test_fully_shard_training_memory) {
  for (const bool reshard : {true, false}) {
    for (const bool offload : {false, true}) expect_training_memory(reshard, offload);
  }
}

// A REDUCE_GRAD after every microbatch: the reduction of one is finished before the next backward
// accumulates, so memory does not grow with their number.
TEST(FullyShardMemory, SeveralReduceGradsPerStep) {
  constexpr int kLayers = 4, kRanks = 2, kMicrobatches = 16;
  tests::Meter meter;
  on_ranks(kRanks, [&](Rank& self) {
    const tests::Meter counts_here = tests::Meter::together_with(meter);
    const ModulePtr module = tests::make_mlps(64, kLayers, 42);
    int64_t all = 0, largest = 0;
    for (const at::Tensor& weight : module->parameters()) {
      const auto bytes = kRanks * static_cast<int64_t>(weight.nbytes());
      all += bytes;
      largest = std::max(largest, bytes);
    }
    Sharding sharding(self, *module, mlps(kLayers), {});
    const auto stage = sharding.root().data_parallel();
    on_first_rank_alone(self, [&] { meter.restart_peak(); });
    stage->unshard();
    stage->wait_unshard();
    for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
      const at::Tensor loss = forward(module, random_input({1, 64}, 1)).sum();
      stage->before_backward(microbatch, /*last=*/true);
      loss.backward();
      stage->reduce_grad();
    }
    stage->wait_reduce();
    on_first_rank_alone(self, [&] {
      // Shards, parameters, gradients, gradients of shards, and the buffers of two layers; and the
      // thread backend's buffer for one parameter.
      const int64_t slack = kRanks * (16 << 10) + largest;
      EXPECT_LE(meter.peak(), 3 * all + 2 * all / kLayers + slack);
    });
  });
}

// Along dimension 0 the all-gather writes where the parameters are used. Along other dimensions it
// writes to a buffer, which is copied and freed before unshard() returns.
TEST(FullyShardMemory, UnshardHoldsOneCopy) {
  constexpr int64_t kRanks = 2, kCount = 4, kBytes = 64 * 64 * 8;
  for (const int64_t dim : {0, 1}) {
    tests::Meter meter;
    on_ranks(kRanks, [&](Rank& self) {
      const tests::Meter counts_here = tests::Meter::together_with(meter);
      torch::nn::Module module;
      for (int i = 0; i < kCount; ++i)
        module.register_parameter("w" + std::to_string(i), random_input({64, 64}, 1));
      const auto unit = fully_shard(
          module, self.group, {.shard_placement_fn = [dim](const at::Tensor&) { return dim; }});
      int64_t sharded = 0;
      for (int round = 0; round < 2; ++round) {
        on_first_rank_alone(self, [&] {
          sharded = meter.bytes();
          EXPECT_EQ(sharded, kCount * kBytes);  // the halves of both ranks
          meter.restart_peak();
        });
        unit->unshard();
        on_first_rank_alone(self, [&] {
          const int64_t whole = kRanks * kCount * kBytes;
          EXPECT_EQ(meter.bytes() - sharded, whole);
          // The thread backend's buffer for one parameter.
          const int64_t slack = kRanks * kBytes;
          EXPECT_LE(meter.peak() - sharded, (dim == 0 ? 1 : 2) * whole + slack);
          EXPECT_GE(meter.peak() - sharded, (dim == 0 ? 1 : 2) * whole - slack);
        });
        unit->reshard();
      }
    });
  }
}

// A gradient that nobody else has is not copied. Parameters and gradients are copied if they are
// not sharded along dim 0.
TEST(FullyShardMemory, BytesCopied) {
  on_ranks(2, [](Rank& self) {
    for (const int64_t dim : {0, 1}) {
      const auto linear =
          std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(8, 16).bias(false));
      const auto bytes = static_cast<int64_t>(linear->weight.nbytes());
      const auto unit = fully_shard(
          *linear, self.group, {.shard_placement_fn = [dim](const at::Tensor&) { return dim; }});
      const at::Tensor output = forward(linear, at::ones({2, 8}));
      EXPECT_EQ(unit->bytes_copied(), dim == 0 ? 0 : bytes);
      output.sum().backward();
      EXPECT_EQ(unit->bytes_copied(), dim == 0 ? 0 : 2 * bytes);
    }
  });
}

}  // namespace
}  // namespace pipewright::fsdp
