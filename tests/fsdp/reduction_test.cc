// How gradients are averaged, and gradient clipping.
#include "pipewright/modules/reduction.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>

#include <functional>
#include <limits>
#include <tuple>
#include <vector>

#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/layout/layout.h"
#include "pipewright/modules/clip_grad_norm.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::fsdp {
namespace {

using modules::clip_grad_norm_;
using modules::ReduceOp;
using modules::Reduction;
using modules::reduction_of;
using tests::blocks;
using tests::data_seed;
using tests::difference;
using tests::ModulePtr;
using tests::on_ranks;
using tests::random_input;
using tests::random_tokens;
using tests::Rank;
using tests::Sharding;
using tests::shards_of;

TEST(Chunk, IsTorchChunk) {
  for (int64_t length = 0; length <= 20; ++length) {
    for (int64_t ranks = 1; ranks <= 9; ++ranks) {
      const auto chunks = at::arange(length).chunk(ranks);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const layout::Chunk got = layout::chunk_of(length, ranks, rank);
        const bool there = rank < static_cast<int64_t>(chunks.size()) && length > 0;
        ASSERT_EQ(got.length, there ? chunks[static_cast<size_t>(rank)].numel() : 0);
        if (got.length > 0) {
          ASSERT_EQ(got.begin, chunks[static_cast<size_t>(rank)][0].item<int64_t>());
        }
      }
    }
  }
}

// In every case the sum is divided by the factor exactly once.
TEST(Reduction, DividesByTheFactorOnce) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const int ranks : {1, 2, 3, 4, 6, 8, 16, 64}) {
      for (const std::optional<double> factor :
           {std::optional<double>(), std::optional<double>(1), std::optional<double>(ranks),
            std::optional<double>(2 * ranks), std::optional<double>(0.5)}) {
        for (const bool force_sum : {false, true}) {
          const Reduction reduction = reduction_of(dtype, ranks, 1, factor, force_sum);
          EXPECT_EQ(reduction.divisor(ranks), factor.value_or(ranks));
          if (force_sum || dtype == at::kHalf) {
            EXPECT_EQ(reduction.op, ReduceOp::kSum);
          }
        }
      }
    }
  }
  // With replicas: PyTorch's table.
  using Ops = std::tuple<ReduceOp, ReduceOp, double>;
  constexpr ReduceOp kAvg = ReduceOp::kAverage, kSum = ReduceOp::kSum;
  for (const auto& [factor, force, want] :
       std::vector<std::tuple<std::optional<double>, bool, Ops>>{
           {std::nullopt, false, {kAvg, kAvg, 1}},
           {8.0, false, {kAvg, kAvg, 1}},
           {4.0, false, {kAvg, kSum, 1}},
           {3.0, false, {kSum, kSum, 3}},
           {std::nullopt, true, {kSum, kSum, 8}},
           {4.0, true, {kSum, kSum, 4}}}) {
    const Reduction reduction = reduction_of(at::kFloat, 4, 2, factor, force);
    EXPECT_EQ((Ops{reduction.op, reduction.across, reduction.post}), want);
    EXPECT_EQ(reduction.divisor(4, 2), factor.value_or(8));
  }
  // PyTorch's halves for fp16.
  for (const auto& [ranks, pre, post] : {std::tuple{2, 2.0, 1.0}, std::tuple{4, 2.0, 2.0},
                                         std::tuple{8, 4.0, 2.0}, std::tuple{16, 4.0, 4.0}}) {
    const Reduction reduction = reduction_of(at::kHalf, ranks, 1, std::nullopt, false);
    EXPECT_EQ(reduction.pre, pre) << ranks;
    EXPECT_EQ(reduction.post, post) << ranks;
  }
}

TEST(FullyShardComm, test_divide_factor) {
  for (const int ranks : {1, 2, 4}) {
    for (const bool force_sum : {false, true}) {
      for (const double factor : {1.0 * ranks, 2.0 * ranks, 0.5}) {
        on_ranks(ranks, [&](Rank& self) {
          const ModulePtr plain = tests::make_mlp(4, 2, 42), module = tests::make_mlp(4, 2, 42);
          Sharding sharding(self, *module, {}, {});
          sharding.root().set_gradient_divide_factor(factor);
          sharding.root().set_force_sum_reduction_for_comms(force_sum);
          // Twice: gradients add up.
          for (const int microbatch : {0, 1}) {
            const at::Tensor input = random_input({2, 4}, data_seed(microbatch, self.rank));
            plain->forward(input).sum().backward();
            forward(module, input).sum().backward();
          }
          tests::average_grads(*plain, *self.by_hand);
          for (const at::Tensor& weight : plain->parameters()) weight.grad().mul_(ranks / factor);
          EXPECT_EQ(difference(*plain, *module, shards_of(self)), "") << factor << force_sum;
        });
      }
    }
  }
}

// fp16 divides partly before and partly after the sum.
TEST(FullyShard, HalfPrecision) {
  on_ranks(4, [](Rank& self) {
    const auto linear =
        std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(8, 5).bias(false));
    linear->to(tests::here(), at::kHalf);
    const auto unit = fully_shard(*linear, self.group);
    const at::Tensor input = at::full({1, 8}, 4.0 * (self.rank + 1), tests::here(at::kHalf));
    forward(linear, input).sum().backward();
    EXPECT_TRUE(at::equal(
        linear->weight.grad(),
        at::full({self.rank == 3 ? 0 : (self.rank == 2 ? 1 : 2), 8}, 10, tests::here(at::kHalf))));
  });
}

TEST(FullyShard, test_clip_grad_norm) {
  for (const double norm_type : {2.0, 1.0, 3.0, std::numeric_limits<double>::infinity()}) {
    on_ranks(4, [&](Rank& self) {
      const tests::TransformerArgs args{.layers = 2, .tied = false};
      const ModulePtr plain = tests::make_transformer(args, 42);
      const ModulePtr module = tests::make_transformer(args, 42);
      Sharding sharding(self, *module, blocks(2), {});
      for (int iteration = 0; iteration < 2; ++iteration) {
        for (const ModulePtr& each : {plain, module}) {
          each->zero_grad();
          forward(each, random_tokens({2, 8}, 8, data_seed(iteration, self.rank))).sum().backward();
        }
        tests::average_grads(*plain, *self.by_hand);
        const double want = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.25, norm_type);
        self.log->clear();
        const at::Tensor got = clip_grad_norm_(module->parameters(), *self.group, 0.25, norm_type);
        EXPECT_EQ(self.log->count("allreduce"), 1);
        EXPECT_EQ(self.log->calls().size(), 1u);
        EXPECT_NEAR(got.item<double>() / want, 1, 1e-9);
        EXPECT_GT(want, 0.25);  // something was clipped
        EXPECT_EQ(difference(*plain, *module, shards_of(self)), "") << norm_type;
      }
    });
  }
  on_ranks(1, [](Rank& self) {
    EXPECT_THROW(clip_grad_norm_({at::ones({1})}, *self.group, -1), std::invalid_argument);
  });
}

// Its weights share one gradient, which a hook sees too.
struct Sum : torch::nn::Module {
  explicit Sum(at::ScalarType dtype)
      : a(register_parameter("a", at::ones({4, 3}, dtype))),
        b(register_parameter("b", at::ones({4, 3}, dtype))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor view = a.view_as(a);
    if (hook) view.register_hook(hook);
    return x * (view + b);
  }
  at::Tensor a, b;
  std::function<void(const at::Tensor&)> hook;
};

enum class Others { kNothing, kGradient, kItsMemory };

// Gradients are kept without a copy where nobody else has them. Adding to them, and dividing them
// before they are reduced as for fp16, must not change what others have.
TEST(FullyShard, ReducesGradientsThatOthersHave) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
    for (const Others others : {Others::kNothing, Others::kGradient, Others::kItsMemory}) {
      SCOPED_TRACE(testing::Message() << dtype << " " << static_cast<int>(others));
      on_ranks(2, [&](Rank& self) {
        const auto input = [&](int rank, int backward) {
          return (at::arange(12, dtype).view({4, 3}) + rank + 4 * backward).to(tests::here());
        };
        const auto module = std::make_shared<Sum>(dtype);
        module->to(tests::here());
        std::vector<at::Tensor> seen;
        if (others != Others::kNothing) {
          module->hook = [&](const at::Tensor& grad) {
            seen.push_back(others == Others::kGradient ? grad : grad.detach());
          };
        }
        const auto unit = fully_shard(*module, self.group);
        for (const int backward : {0, 1}) {
          unit->set_requires_gradient_sync(backward == 1);
          forward(module, input(self.rank, backward)).sum().backward();
        }
        const at::Tensor expected = (input(0, 0) + input(1, 0) + input(0, 1) + input(1, 1)) / 2;
        for (const at::Tensor& weight : {module->a, module->b}) {
          EXPECT_TRUE(at::equal(weight.grad().cpu(), expected.narrow(0, 2 * self.rank, 2).cpu()))
              << weight.grad();
        }
        ASSERT_EQ(seen.size(), others == Others::kNothing ? 0u : 2u);
        for (size_t backward = 0; backward < seen.size(); ++backward) {
          EXPECT_TRUE(
              at::equal(seen[backward].cpu(), input(self.rank, static_cast<int>(backward)).cpu()))
              << seen[backward];
        }
      });
    }
  }
}

// The norm of fp16 gradients is computed in fp32, because their squares underflow or overflow.
TEST(FullyShard, ClipGradNormOfHalves) {
  on_ranks(2, [](Rank& self) {
    for (const double size : {1e-5, 1e3}) {
      const at::Tensor weight = at::zeros({600}, at::kHalf).requires_grad_();
      weight.mutable_grad() = at::full({600}, size, at::kHalf);
      const double want = weight.grad().to(at::kDouble).norm().item<double>() * std::sqrt(2.0);
      EXPECT_NEAR(clip_grad_norm_({weight}, *self.group, 1e9).item<double>() / want, 1, 1e-5);
    }
  });
}

}  // namespace
}  // namespace pipewright::fsdp
