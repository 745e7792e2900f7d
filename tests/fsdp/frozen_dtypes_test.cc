// Frozen parameters of another dtype than the trainable ones of their group, such as quantized
// weights beside trained ones: PyTorch's test_mixed_dtypes_no_grad_param. A plain copy is the
// judge.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/modules/distribution.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::fsdp {
namespace {

using tests::expect_errors;
using tests::kGather;
using tests::kReduce;
using tests::on_ranks;
using tests::Parity;
using tests::Rank;
using tests::Sharding;
using tests::shards_of;
using tests::sum_of;

constexpr int64_t kDim = 6;

// Frozen weights in fp8 and of whole numbers, and two trained ones around them.
struct Quantized : tests::TestModule {
  Quantized() {
    const auto add = [&](const std::string& name, uint64_t seed, at::ScalarType dtype) {
      const at::Tensor value = tests::random_input({kDim, kDim}, seed);
      const bool trains = dtype == at::kDouble;
      return register_parameter(name, (trains ? value : value * 3).to(dtype), trains);
    };
    weight8 = add("weight8", 1, at::kFloat8_e4m3fn);
    weight = add("weight", 2, at::kDouble);
    whole = add("whole", 3, at::kChar);
    last = add("last", 4, at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) override {
    seen = {weight8.scalar_type(), weight.scalar_type(), whole.scalar_type()};
    const at::ScalarType dtype = weight.scalar_type();
    const at::Tensor y = at::linear(x, weight8.to(dtype)) + at::linear(x, weight);
    return at::linear(at::linear(y, whole.to(dtype)), last);
  }
  at::Tensor weight8, weight, whole, last;
  std::vector<at::ScalarType> seen;
};

TEST(FullyShardFrozen, test_mixed_dtypes_no_grad_param) {
  const std::function<int64_t(const at::Tensor&)> along_columns = [](const at::Tensor&) {
    return int64_t{1};
  };
  struct Case {
    int ranks, replicas;
    ReshardAfterForward reshard_after_forward;
    std::function<int64_t(const at::Tensor&)> placement;
    bool offloads;
  };
  for (const Case& the : {Case{1, 1, true, nullptr, false}, Case{2, 1, true, nullptr, false},
                          Case{2, 1, true, along_columns, false}, Case{2, 1, true, nullptr, true},
                          Case{4, 1, false, nullptr, false}, Case{4, 1, 2, nullptr, false},
                          Case{4, 2, true, nullptr, false}}) {
    on_ranks(the.ranks, [&](Rank& self) {
      const auto plain = std::make_shared<Quantized>(), module = std::make_shared<Quantized>();
      Parity parity(self, plain, module, shards_of(self, the.placement, the.replicas));
      Options options{.reshard_after_forward = the.reshard_after_forward,
                      .shard_placement_fn = the.placement};
      if (the.offloads) options.offload_policy = CPUOffloadPolicy{};
      Sharding sharding(self, *module, {}, options, the.replicas);
      EXPECT_EQ(module->weight8.scalar_type(), at::kFloat8_e4m3fn);
      EXPECT_EQ(module->whole.scalar_type(), at::kChar);
      parity.train(sum_of({4, kDim}));
      EXPECT_EQ(module->seen, (std::vector{at::kFloat8_e4m3fn, at::kDouble, at::kChar}));
      EXPECT_FALSE(module->weight8.grad().defined());
    });
  }
}

// One gather for all of them, of the bytes that they have, and one reduction of the trained ones.
TEST(FullyShardFrozen, OneGatherOfBytes) {
  on_ranks(2, [](Rank& self) {
    const auto module = std::make_shared<Quantized>();
    Sharding sharding(self, *module, {}, {});
    forward(module, tests::random_input({2, kDim}, 5)).sum().backward();
    const auto calls = self.log->calls();
    ASSERT_EQ(calls.size(), 2u);
    EXPECT_EQ(calls[0].op, kGather);
    EXPECT_EQ(calls[0].bytes, kDim * kDim * (2 * 8 + 2 * 1));
    EXPECT_EQ(calls[1].op, kReduce);
    // The shards of two, and a flag for each of the four parameters.
    EXPECT_EQ(calls[1].bytes, (kDim * kDim + 4) * 8);
  });
}

// param_dtype casts floating-point parameters, as in PyTorch, but not whole numbers.
TEST(FullyShardFrozen, MixedPrecision) {
  on_ranks(2, [](Rank& self) {
    const auto plain = std::make_shared<Quantized>(), module = std::make_shared<Quantized>();
    Sharding sharding(
        self, *module, {},
        {.mixed_precision = {.param_dtype = at::kFloat, .reduce_dtype = at::kDouble}});
    plain->to(at::kFloat);  // floating-point parameters only
    const at::Tensor x = tests::random_input({4, kDim}, 5);
    forward(module, x).sum().backward();
    plain->forward(x.to(at::kFloat)).sum().backward();
    EXPECT_EQ(module->seen, (std::vector{at::kFloat, at::kFloat, at::kChar}));
    EXPECT_EQ(module->weight8.scalar_type(), at::kFloat8_e4m3fn);
    for (const auto& [got, expected] :
         {std::pair{module->weight, plain->weight}, std::pair{module->last, plain->last}}) {
      EXPECT_TRUE(at::allclose(
          got.grad(), tests::part_of(expected.grad().to(at::kDouble), self.rank, 2), 1e-6));
    }
  });
}

TEST(FullyShardFrozen, FullTensorOfEachDtype) {
  on_ranks(4, [](Rank& self) {
    const auto plain = std::make_shared<Quantized>(), module = std::make_shared<Quantized>();
    Sharding sharding(self, *module, {}, {});
    const auto expected = plain->parameters(), parameters = module->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor whole = modules::full_tensor(parameters[i]);
      EXPECT_EQ(whole.scalar_type(), expected[i].scalar_type());
      EXPECT_TRUE(at::equal(whole.to(at::kDouble), expected[i].to(at::kDouble)));
    }
  });
}

// Once it is trained, a parameter must have the dtype of the other trained ones.
TEST(FullyShardFrozen, UnfreezingAnotherDtype) {
  struct TwoDtypes : torch::nn::Module {
    at::Tensor half = register_parameter("half", at::ones({4}, tests::here(at::kHalf)), false);
    at::Tensor weight = register_parameter("weight", at::ones({4}, tests::here()));
  };
  expect_errors(
      2,
      "parameter `weight` of the root became Float on {here}: expected the dtype and device "
      "of `half`, Half on {here}",
      [](Rank& self) {
        TwoDtypes module;
        const auto unit = fully_shard(module, self.group);
        module.half.set_requires_grad(true);
        unit->unshard();
      });
}

}  // namespace
}  // namespace pipewright::fsdp
