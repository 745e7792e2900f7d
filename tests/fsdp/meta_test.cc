// Modules that are sharded on the meta device and get memory afterwards: the tests of meta modules
// in PyTorch's test_fully_shard_init.py.
#include "pipewright/modules/meta.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include "pipewright/comms/group_collectives.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/ir/errors.h"
#include "pipewright/modules/distribution.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/meter/meter.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::fsdp {
namespace {

using tests::expect_errors;
using tests::make_mlps;
using tests::mlps;
using tests::ModulePtr;
using tests::on_ranks;
using tests::Parity;
using tests::Rank;
using tests::Sharding;
using tests::shards_of;
using tests::sum_of;

ModulePtr make_meta(int64_t dim, int layers) {
  ModulePtr module = make_mlps(dim, layers, 1);
  modules::to_meta(*module);
  return module;
}

void copy_from(torch::nn::Module& module, const torch::nn::Module& whole) {
  const auto from = whole.parameters(), to = module.parameters();
  for (size_t i = 0; i < to.size(); ++i) modules::set_full_tensor(to[i], from[i]);
}

// Ten steps of Adam equal those of a plain model. Of dimension 1 most shards are empty.
TEST(FullyShardMeta, test_meta_device_init) {
  for (const int64_t dim : {8, 3, 1}) {
    for (const int replicas : {1, 2}) {
      for (const bool offloads : {false, true}) {
        on_ranks(4, [&](Rank& self) {
          const ModulePtr plain = make_mlps(dim, 2, 42), module = make_meta(dim, 2);
          Options options;
          if (offloads) options.offload_policy = CPUOffloadPolicy{};
          Parity parity(self, plain, module, shards_of(self, nullptr, replicas));
          Sharding sharding(self, *module, mlps(2), options, replicas);
          for (const at::Tensor& parameter : module->parameters()) EXPECT_TRUE(parameter.is_meta());
          modules::to_empty(*module, offloads ? at::kCPU : tests::here());
          copy_from(*module, *plain);
          EXPECT_EQ(parity.difference(), "");
          parity.train(sum_of({4, dim}));
        });
      }
    }
  }
}

// With mixed precision, as a model that had memory when it was sharded.
TEST(FullyShardMeta, MixedPrecision) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr whole = make_mlps(8, 2, 42), real = make_mlps(8, 2, 42), meta = make_meta(8, 2);
    const Options options = {
        .mixed_precision = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}};
    const Sharding of_real(self, *real, mlps(2), options), of_meta(self, *meta, mlps(2), options);
    modules::to_empty(*meta, tests::here());
    copy_from(*meta, *whole);
    for (const ModulePtr& module : {real, meta})
      forward(module, tests::random_input({4, 8}, 7)).sum().backward();
    const auto expected = real->parameters(), got = meta->parameters();
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(at::equal(got[i], expected[i]));
      EXPECT_TRUE(at::equal(got[i].grad(), expected[i].grad()));
    }
  });
}

// Without a group to shard over, nothing is gathered, but memory is still required.
TEST(FullyShardMeta, OneRank) {
  on_ranks(1, [](Rank& self) {
    const ModulePtr plain = make_mlps(4, 2, 42), module = make_meta(4, 2);
    Parity parity(self, plain, module);
    const Sharding sharding(self, *module, mlps(2), {});
    EXPECT_THROW(forward(module, at::ones({2, 4}, tests::here())), ContractError);
    modules::to_empty(*module, tests::here());
    copy_from(*module, *plain);
    parity.train(sum_of({4, 4}));
  });
}

// Only shards are ever allocated.
TEST(FullyShardMeta, Memory) {
  constexpr int kRanks = 4;
  const tests::Meter meter(tests::device_type());
  on_ranks(kRanks, [&](Rank& self) {
    const tests::Meter counts_here = tests::Meter::together_with(meter);
    const ModulePtr module = make_meta(64, 4);
    int64_t numel = 0;
    for (const at::Tensor& parameter : module->parameters()) numel += parameter.numel();
    const int64_t slack = kRanks * (16 << 10);  // comparisons between ranks
    tests::on_first_rank_alone(self, [&] {
      EXPECT_LE(meter.bytes(), slack);
      meter.restart_peak();
    });
    const Sharding sharding(self, *module, mlps(4), {});
    tests::on_first_rank_alone(self, [&] { EXPECT_LE(meter.peak(), slack); });
    modules::to_empty(*module, tests::here());
    tests::on_first_rank_alone(self, [&] { EXPECT_LE(meter.peak(), 8 * numel + slack); });
  });
}

// Rank 0 has the weights, and the others get them: test_rank0_broadcast_meta_device_init.
TEST(FullyShardMeta, test_rank0_broadcast) {
  on_ranks(4, [](Rank& self) {
    const ModulePtr plain = make_mlps(6, 2, 42), module = make_meta(6, 2);
    Parity parity(self, plain, module, shards_of(self));
    const Sharding sharding(self, *module, mlps(2), {});
    modules::to_empty(*module, tests::here());
    const auto from = plain->parameters(), to = module->parameters();
    for (size_t i = 0; i < to.size(); ++i) {
      const at::Tensor whole =
          self.rank == 0 ? from[i].detach().clone() : at::empty_like(from[i].detach());
      comms::broadcast_values({whole}, *self.by_hand);
      modules::set_full_tensor(to[i], whole);
    }
    parity.train(sum_of({4, 6}));
  });
}

// Parameters and buffers of LibTorch's modules, and init functions on shards.
TEST(FullyShardMeta, BuffersAndInitialization) {
  on_ranks(2, [](Rank& self) {
    torch::nn::BatchNorm1d norm(6);
    modules::to_meta(*norm);
    for (const at::Tensor& buffer : norm->buffers()) EXPECT_TRUE(buffer.is_meta());
    const auto unit = fully_shard(*norm, self.group);
    modules::to_empty(*norm, tests::here());
    norm->reset_parameters();
    norm->reset_running_stats();
    const at::Tensor x = tests::random_input({8, 6}, 3).to(at::kFloat);
    const at::Tensor y = forward(norm, x);
    torch::nn::BatchNorm1d plain(6);
    plain->to(tests::here());
    EXPECT_TRUE(at::equal(y, plain(x)));
    EXPECT_TRUE(at::equal(norm->running_var, plain->running_var));
  });
}

TEST(FullyShardMeta, Errors) {
  for (const int ranks : {1, 2}) {
    expect_errors(ranks,
                  "fully_shard: parameter `in_proj.weight` of `mlp0` is on the meta device: "
                  "expected it to have memory; call modules::to_empty()",
                  [](Rank& self) {
                    const ModulePtr module = make_meta(4, 2);
                    const Sharding sharding(self, *module, mlps(2), {});
                    modules::to_empty(*module->named_children()["first"], tests::here());
                    forward(module, at::ones({2, 4}, tests::here(at::kDouble)));
                  });
  }
  expect_errors(2, "became Double on {here}: expected the dtype and device of `in_proj.weight`",
                [](Rank& self) {
                  const ModulePtr module = make_meta(4, 2);
                  const auto part = module->named_children()["mlp0"];
                  const auto unit = fully_shard(*part, self.group);
                  modules::to_empty(*part->named_children()["out_proj"], tests::here());
                  unit->unshard();
                });
  expect_errors(2, "ranks disagree: expected `first.weight`, Double [4, 4], along 0 as on rank 0, ",
                [](Rank& self) {
                  const ModulePtr module = self.rank == 0 ? make_mlps(4, 1, 1) : make_meta(4, 1);
                  (void)fully_shard(*module, self.group);
                });
  expect_errors(2, "full_tensor: expected values, got a meta tensor", [](Rank& self) {
    const ModulePtr module = make_meta(4, 1);
    const auto unit = fully_shard(*module, self.group);
    (void)modules::full_tensor(module->parameters()[0]);
  });
  expect_errors(2, "set_full_tensor: the parameter is on the meta device", [](Rank& self) {
    const ModulePtr module = make_meta(4, 1);
    const auto unit = fully_shard(*module, self.group);
    modules::set_full_tensor(module->parameters()[0], at::ones({4, 4}, tests::here(at::kDouble)));
  });
}

}  // namespace
}  // namespace pipewright::fsdp
