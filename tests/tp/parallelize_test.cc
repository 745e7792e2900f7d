// Styles and layouts one by one against the whole module.
#include "pipewright/tp/parallelize.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "pipewright/comms/mesh.h"
#include "pipewright/layout/layout.h"
#include "pipewright/modules/distribution.h"
#include "pipewright/modules/forward.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/tp/small_model.h"

namespace pipewright::tp {
namespace {

namespace nn = torch::nn;
using comms::Mesh;
using layout::TensorPlacement;
using tests::on_ranks;
using tests::Rank;

const TensorPlacement kCopy = TensorPlacement::replicate();

at::Tensor chunk(const at::Tensor& whole, const std::optional<int>& dim, const Rank& self) {
  if (!dim) return whole;
  const layout::Chunk mine = layout::chunk_of(whole.size(*dim), self.world->size(), self.rank);
  return whole.narrow(*dim, mine.begin, mine.length);
}

// Equal on all ranks: the default generator belongs to the process.
void draw(nn::Module& module) {
  const torch::NoGradGuard no_grad;
  module.to(at::kDouble);
  uint64_t seed = 100;
  for (at::Tensor& weight : module.parameters())
    weight.copy_(tests::random_input(weight.sizes(), ++seed));
}

// Forward and backward of `split` on this rank's part of the input, compared with `plain`'s on the
// whole one. The loss weighs each element differently.
template <typename Module>
void expect_same(Rank& self, Module plain, Module split, const Style& style,
                 const at::Tensor& input, const TensorPlacement& in, const TensorPlacement& out) {
  Mesh mesh(*self.world, {{"tp", self.world->size()}});
  const auto tp = parallelize(*split, {{"", style}}, mesh, "tp");
  at::Tensor whole = input.clone(), part = chunk(input, in.dim(), self).clone();
  const bool differentiable = input.is_floating_point();
  if (differentiable) whole.requires_grad_(), part.requires_grad_();
  const at::Tensor expected = plain->forward(whole);
  const at::Tensor got = modules::forward(split, part);
  EXPECT_TRUE(at::allclose(chunk(expected, out.dim(), self), got)) << style.name();
  const at::Tensor weights =
      at::cos(at::arange(expected.numel(), at::kDouble)).reshape(expected.sizes());
  (expected * weights).sum().backward();
  (got * chunk(weights, out.dim(), self)).sum().backward();
  for (const auto& named : plain->named_parameters()) {
    const at::Tensor parameter = split->named_parameters()[named.key()];
    const auto placement = modules::layout_of(parameter).layout.placements()[0];
    const at::Tensor& grad = parameter.grad();
    ASSERT_TRUE(grad.defined()) << named.key();
    EXPECT_TRUE(at::allclose(chunk(named.value().grad(), placement.dim(), self), grad))
        << style.name() << " " << named.key();
    EXPECT_TRUE(at::equal(modules::full_tensor(parameter), named.value())) << named.key();
  }
  if (differentiable) {
    EXPECT_TRUE(at::allclose(chunk(whole.grad(), in.dim(), self), part.grad())) << style.name();
  }
}

TEST(Styles, Linear) {
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, [](Rank& self) {
      const auto expect = [&](const Style& style, const TensorPlacement& in,
                              const TensorPlacement& out) {
        for (const bool bias : {true, false}) {
          nn::Linear plain(nn::LinearOptions(7, 5).bias(bias));
          draw(*plain);
          nn::Linear split(std::dynamic_pointer_cast<nn::LinearImpl>(plain->clone()));
          expect_same(self, plain, split, style, tests::random_input({6, 4, 7}, 2), in, out);
        }
      };
      const TensorPlacement rows = TensorPlacement::shard(0), features = TensorPlacement::shard(-1);
      expect(colwise_parallel(), kCopy, features);
      expect(colwise_parallel({.output = kCopy}), kCopy, kCopy);
      expect(colwise_parallel({.input = rows}), rows, features);
      expect(colwise_parallel({.input = rows, .output = kCopy}), rows, kCopy);
      expect(rowwise_parallel(), features, kCopy);
      expect(rowwise_parallel({.input = kCopy}), kCopy, kCopy);
      expect(rowwise_parallel({.output = rows}), features, rows);
      expect(rowwise_parallel({.output = TensorPlacement::shard(1)}), features,
             TensorPlacement::shard(1));
    });
  }
}

TEST(Styles, Embedding) {
  for (const int ranks : {1, 2, 4}) {
    on_ranks(ranks, [](Rank& self) {
      // Over 4 ranks, 9 rows are 3, 3, 3 and 0.
      const at::Tensor indices = tests::random_tokens({4, 6}, 9, 3);
      const auto expect = [&](const Style& style, const TensorPlacement& out) {
        nn::Embedding plain(9, 5);
        draw(*plain);
        nn::Embedding split(std::dynamic_pointer_cast<nn::EmbeddingImpl>(plain->clone()));
        expect_same(self, plain, split, style, indices, kCopy, out);
      };
      expect(colwise_parallel(), TensorPlacement::shard(-1));
      expect(colwise_parallel({.output = kCopy}), kCopy);
      expect(rowwise_parallel(), kCopy);
      expect(rowwise_parallel({.output = TensorPlacement::shard(1)}), TensorPlacement::shard(1));
    });
  }
}

// The values of rank 0 count, and an assigned whole tensor is split again.
TEST(Parallelize, TakesTheFirstRanksValuesAndAssignedOnes) {
  on_ranks(2, [](Rank& self) {
    Mesh mesh(*self.world, {{"tp", 2}});
    const auto module = std::make_shared<SmallModel>();
    const torch::NoGradGuard no_grad;
    module->up->weight.fill_(self.rank + 1);
    const at::Tensor same = module->up->weight;
    const auto tp = parallelize(*module, {{"up", colwise_parallel()}}, mesh, "tp");
    EXPECT_TRUE(same.is_same(module->up->weight));
    const auto layouts = modules::layouts(*module);
    EXPECT_EQ(layouts.at("up.weight").layout.text(), "[6, 4] tp=2:shard(0)");
    EXPECT_EQ(layouts.at("up.weight").rank, self.rank);
    EXPECT_EQ(layouts.at("norm.weight").layout.text(), "[4] tp=2:replicate");
    EXPECT_EQ(layouts.size(), 7u);
    EXPECT_TRUE(at::equal(module->up->weight, at::ones({3, 4})));
    const at::Tensor whole = at::arange(24, at::kFloat).reshape({6, 4});
    modules::set_full_tensor(same, whole);
    EXPECT_TRUE(at::equal(module->up->weight, whole.narrow(0, 3 * self.rank, 3)));
    EXPECT_TRUE(at::equal(modules::full_tensor(same), whole));
  });
}

// Both ends of a tied weight are split along the vocabulary.
TEST(Parallelize, KeepsTiedWeights) {
  on_ranks(2, [](Rank& self) {
    Mesh mesh(*self.world, {{"tp", 2}});
    const auto module = std::make_shared<SmallModel>();
    const auto head =
        module->register_module("head", nn::Linear(nn::LinearOptions(4, 8).bias(false)));
    head->weight = module->tokens->weight;
    const auto tp = parallelize(
        *module, {{"tokens", rowwise_parallel()}, {"head", colwise_parallel()}}, mesh, "tp");
    EXPECT_EQ(head->weight.sizes(), at::IntArrayRef({4, 4}));
    EXPECT_TRUE(head->weight.is_same(module->tokens->weight));
  });
}

}  // namespace
}  // namespace pipewright::tp
