// Casts and freezing after fully_shard, and mixed precision: PyTorch's test_fully_shard_mixed_
// precision.py and test_fully_shard_frozen.py. A plain copy in the dtypes of the policy is the
// judge; ranks are threads, which reduce in the order of ranks, so results are equal bit by bit.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>

#include "pipewright/fsdp/fully_shard.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/mixed_reference.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::fsdp {
namespace {

using modules::MixedPrecisionPolicy;
using tests::data_seed;
using tests::in_float;
using tests::kReduce;
using tests::mlps;
using tests::ModulePtr;
using tests::on_ranks;
using tests::Parity;
using tests::random_input;
using tests::Rank;
using tests::Sharding;
using tests::shards_of;
using tests::sum_of;

struct Case {
  const char* name;
  MixedPrecisionPolicy policy;
};

const Case kNone = {"none", {}};
const Case kBf16 = {"bf16", {.param_dtype = at::kBFloat16}};
const Case kFp16 = {"fp16", {.param_dtype = at::kHalf, .reduce_dtype = at::kHalf}};
const Case kBf16InFp32 = {"bf16_reduced_in_fp32",
                          {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}};
const Case kFp32InBf16 = {"fp32_reduced_in_bf16", {.reduce_dtype = at::kBFloat16}};
const Case kClamped = {"clamped", {.param_dtype = at::kBFloat16, .reduce_dtype = at::kBFloat16}};

class Policies : public testing::TestWithParam<Case> {};
class CastPolicies : public Policies {};
class OneRankPolicies : public Policies {};

std::string name_of(const testing::TestParamInfo<Case>& of) { return of.param.name; }

INSTANTIATE_TEST_SUITE_P(Dtypes, Policies,
                         testing::Values(kNone, kBf16, kFp16, kBf16InFp32, kFp32InBf16, kClamped),
                         name_of);
// Without kFp32InBf16: what is cast would no longer compute in fp32.
INSTANTIATE_TEST_SUITE_P(Dtypes, CastPolicies,
                         testing::Values(kNone, kBf16, kFp16, kBf16InFp32, kClamped), name_of);
// Without kFp16, for which the reference divides and one rank does not.
INSTANTIATE_TEST_SUITE_P(Dtypes, OneRankPolicies,
                         testing::Values(kNone, kBf16, kBf16InFp32, kFp32InBf16, kClamped),
                         name_of);

// test_compute_dtype, test_reduce_dtype, test_grad_acc_with_reduce_dtype: with `microbatches`
// accumulated before each reduction, and cast to double before the first step if `is_double`.
void expect_parity(Rank& self, const Case& the, ReshardAfterForward reshard_after_forward,
                   int microbatches, bool is_double) {
  const int ranks = self.world->size();
  const at::ScalarType dtype = is_double ? at::kDouble : at::kFloat;
  const ModulePtr plain = in_float(tests::make_mlps(8, 3, 42));
  const ModulePtr module = in_float(tests::make_mlps(8, 3, 42));
  plain->to(dtype);
  tests::MixedReference reference(self, plain, in_float(tests::make_mlps(8, 3, 42)), the.policy);
  Sharding sharding(
      self, *module, mlps(3),
      {.reshard_after_forward = reshard_after_forward, .mixed_precision = the.policy});
  if (is_double) module->to(at::kDouble);
  const auto plain_optimizer = tests::adam(*plain), optimizer = tests::adam(*module);
  for (int iteration = 0; iteration < 4; ++iteration) {
    reference.begin_step();
    optimizer->zero_grad(iteration % 2 == 0);
    for (int m = 0; m < microbatches; ++m) {
      const at::Tensor input =
          random_input({4, 8}, data_seed(10 * iteration + m, self.rank)).to(dtype);
      const at::Tensor want = reference.backward(input);
      sharding.root().set_requires_gradient_sync(m + 1 == microbatches);
      const at::Tensor loss = forward(module, input).sum();
      EXPECT_EQ(loss.scalar_type(), reference.compute_dtype());
      EXPECT_TRUE(at::equal(loss, want)) << the.name << iteration;
      loss.backward();
    }
    reference.reduce();
    const auto want = plain->parameters(), got = module->parameters();
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].scalar_type(), dtype);
      EXPECT_EQ(got[i].grad().scalar_type(), dtype);
      EXPECT_TRUE(at::equal(got[i], tests::part_of(want[i], self.rank, ranks)));
      EXPECT_TRUE(at::equal(got[i].grad(), tests::part_of(want[i].grad(), self.rank, ranks)))
          << the.name << " iteration " << iteration << " parameter " << i;
    }
    plain_optimizer->step();
    optimizer->step();
  }
}

TEST_P(Policies, test_parity) {
  const ReshardAfterForward half(2);
  for (const ReshardAfterForward& reshard :
       {ReshardAfterForward(true), ReshardAfterForward(false), ReshardAfterForward(), half}) {
    for (const int microbatches : {1, 3})
      on_ranks(4,
               [&](Rank& self) { expect_parity(self, GetParam(), reshard, microbatches, false); });
  }
}

// A module that is cast after it was sharded: in PyTorch test_to_float64_after_init. The policy
// stays as it is.
TEST_P(CastPolicies, test_to_float64_after_init) {
  on_ranks(2, [&](Rank& self) { expect_parity(self, GetParam(), true, 1, true); });
}

// One rank computes in another dtype too, without communication.
TEST_P(OneRankPolicies, WithoutCommunication) {
  on_ranks(1, [&](Rank& self) {
    expect_parity(self, GetParam(), true, 2, false);
    EXPECT_TRUE(self.log->calls().empty());
  });
}

// What each module sees: PyTorch's test_float16_on_one_submodule and
// test_submodules_with_external_inputs.
struct Sees : torch::nn::Module {
  Sees() : linear(register_module("linear", torch::nn::Linear(8, 8))) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    x_dtype = x.scalar_type();
    y_dtype = y.scalar_type();
    return linear(x.to(linear->weight.scalar_type()));
  }
  torch::nn::Linear linear;
  at::ScalarType x_dtype{}, y_dtype{};
};

TEST(FullyShardMixedPrecision, test_what_modules_see) {
  on_ranks(2, [](Rank& self) {
    const at::Tensor x = at::zeros({2, 8}, tests::here()),
                     tokens = at::zeros({2}, tests::here(at::kLong));
    const auto run = [&](const MixedPrecisionPolicy& policy, const at::Tensor& y) {
      const auto module = std::make_shared<Sees>();
      module->to(tests::here());
      const auto unit = fully_shard(*module, self.group, {.mixed_precision = policy});
      const at::Tensor out = forward(module, x, y);
      return std::tuple{module->x_dtype, module->y_dtype, out.scalar_type()};
    };
    using Dtypes = std::tuple<at::ScalarType, at::ScalarType, at::ScalarType>;
    EXPECT_EQ(run({.param_dtype = at::kHalf}, x), (Dtypes{at::kHalf, at::kHalf, at::kHalf}));
    EXPECT_EQ(run({.param_dtype = at::kHalf}, tokens), (Dtypes{at::kHalf, at::kLong, at::kHalf}));
    EXPECT_EQ(run({.param_dtype = at::kHalf, .cast_forward_inputs = false}, x),
              (Dtypes{at::kFloat, at::kFloat, at::kHalf}));
    EXPECT_EQ(run({.param_dtype = at::kHalf, .output_dtype = at::kFloat}, x),
              (Dtypes{at::kHalf, at::kHalf, at::kFloat}));
    EXPECT_EQ(run({.output_dtype = at::kHalf}, x), (Dtypes{at::kFloat, at::kFloat, at::kHalf}));
  });
}

// Buffers are not cast. On the CPU the weights of a BatchNorm must have the dtype of its
// statistics, so only its output is cast.
TEST(FullyShardMixedPrecision, test_norm_modules) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    on_ranks(2, [dtype](Rank& self) {
      const auto norm = std::make_shared<torch::nn::LayerNormImpl>(
          torch::nn::LayerNormOptions(std::vector<int64_t>{8}));
      const auto batch = std::make_shared<torch::nn::BatchNorm1dImpl>(8);
      norm->to(tests::here());
      batch->to(tests::here());
      const auto unit = fully_shard(*norm, self.group, {.mixed_precision = {.param_dtype = dtype}});
      const auto other =
          fully_shard(*batch, self.group, {.mixed_precision = {.output_dtype = dtype}});
      const at::Tensor out = forward(batch, forward(norm, at::ones({4, 8}, tests::here())));
      EXPECT_EQ(out.scalar_type(), dtype);
      out.sum().backward();
      EXPECT_EQ(norm->weight.grad().scalar_type(), at::kFloat);
      EXPECT_EQ(batch->running_mean.scalar_type(), at::kFloat);
    });
  }
}

// The bytes that are gathered and reduced are those of the policy.
TEST(FullyShardMixedPrecision, test_dtypes_on_the_wire) {
  on_ranks(2, [](Rank& self) {
    const auto linear =
        std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(8, 8).bias(false));
    linear->to(tests::here());
    const auto unit = fully_shard(
        *linear, self.group,
        {.mixed_precision = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}});
    self.log->clear();
    const at::Tensor out = forward(linear, at::ones({1, 8}, tests::here()));
    EXPECT_EQ(linear->weight.scalar_type(), at::kBFloat16);
    out.sum().backward();
    EXPECT_EQ(linear->weight.scalar_type(), at::kFloat);
    EXPECT_EQ(self.log->count(kReduce), 1);
    // The cast shard, and the gradient.
    EXPECT_EQ(unit->bytes_copied(), 8 * 4 * 2 + 8 * 8 * 2);
  });
}

// PyTorch's test_fully_shard_frozen.py: freezing and unfreezing between iterations. Frozen
// gradients are not reduced, and checkpointing does not change that.
TEST(FullyShardFrozen, test_freezing_after_init) {
  for (const ReshardAfterForward& reshard :
       {ReshardAfterForward(true), ReshardAfterForward(false)}) {
    on_ranks(2, [&](Rank& self) {
      const ModulePtr plain = tests::make_mlps(8, 3, 42), module = tests::make_mlps(8, 3, 42);
      Parity parity(self, plain, module, shards_of(self));
      Sharding sharding(self, *module, mlps(3), {.reshard_after_forward = reshard});
      for (int iteration = 0; iteration < 8; ++iteration) {
        for (const ModulePtr& each : {plain, module}) {
          size_t i = 0;
          for (auto& named : each->named_parameters()) {
            const bool bias = named.key().ends_with("bias");
            const bool trained = iteration < 2 || bias || (iteration > 4 && ++i % 3 != 0);
            named.value().set_requires_grad(trained);
          }
        }
        parity.zero_grad(0);
        parity.backward(sum_of({4, 8}), iteration);
        parity.step();
        const bool reduced = module->named_parameters()["mlp1.in_proj.weight"].grad().defined();
        if (iteration == 3) {
          EXPECT_FALSE(reduced);
        }
      }
    });
  }
}

// Frozen when it is sharded, and trained later.
TEST(FullyShardFrozen, test_unfreezing) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr plain = tests::make_mlps(8, 2, 42), module = tests::make_mlps(8, 2, 42);
    const auto set = [&](bool trained) {
      for (const ModulePtr& each : {plain, module}) {
        for (at::Tensor& weight : each->parts()[1]->parameters()) weight.set_requires_grad(trained);
      }
    };
    set(false);
    Parity parity(self, plain, module, shards_of(self));
    Sharding sharding(self, *module, mlps(2), {.reshard_after_forward = true});
    for (int iteration = 0; iteration < 4; ++iteration) {
      set(iteration >= 2);
      parity.zero_grad(0);
      parity.backward(sum_of({4, 8}), iteration);
      parity.step();
    }
  });
}

// Values that are loaded after the wrap: shards, and full parameters.
TEST(FullyShardCast, LoadedValues) {
  for (const bool whole : {true, false}) {
    on_ranks(2, [whole](Rank& self) {
      const ModulePtr plain = tests::make_mlps(8, 2, 7), module = tests::make_mlps(8, 2, 42);
      Parity parity(self, plain, module, shards_of(self));
      Sharding sharding(self, *module, mlps(2), {.reshard_after_forward = true});
      for (int iteration = 0; iteration < 2; ++iteration) {
        const auto values = plain->parameters();
        auto weights = module->parameters();
        for (size_t i = 0; i < weights.size(); ++i) {
          const at::Tensor value = values[i].detach().clone();
          weights[i].set_data(whole ? value : tests::part_of(value, self.rank, 2).clone());
        }
        parity.zero_grad(0);
        parity.backward(sum_of({4, 8}), iteration);
        parity.step();
      }
    });
  }
}

}  // namespace
}  // namespace pipewright::fsdp
