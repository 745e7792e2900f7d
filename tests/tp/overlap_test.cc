// What a column-parallel layer's backward does while its communication is under way.
#include "pipewright/tp/overlap.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <vector>

#include "pipewright/autograd/split_backward.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/modules/forward.h"
#include "pipewright/tp/communication.h"
#include "pipewright/tp/parallelize.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/tp/noted_group.h"

namespace pipewright::tp {
namespace {

namespace nn = torch::nn;
using comms::Mesh;
using layout::TensorPlacement;
using tests::on_ranks;
using tests::Rank;
const Events kSum = {"products", "all-reduce", "products", "wait"};
const Events kScattered = {"products", "reduce-scatter", "products", "wait"};
const Events kAfterwards = {"products", "all-reduce", "wait"};

struct Case {
  bool bias = true;
  std::vector<int64_t> rows = {4, 6};  // all dimensions of the input but the last
  TensorPlacement input = TensorPlacement::replicate();
};

constexpr int64_t kIn = 5, kOut = 7;

// A layer of `of` on each of 2 ranks, and its whole copy.
struct Layers {
  Layers(Rank& self, const Case& of)
      : plain(nn::LinearOptions(kIn, kOut).bias(of.bias)), split(plain->options) {
    world.emplace(noted(*self.world));
    mesh.emplace(*world, std::vector<layout::MeshDim>{{"tp", 2}});
    for (const auto& each : {plain.ptr(), split.ptr()}) {
      const torch::NoGradGuard no_grad;
      each->to(at::kDouble);
      for (at::Tensor& weight : each->parameters())
        weight.copy_(tests::random_input(weight.sizes(), static_cast<uint64_t>(weight.dim())));
    }
    parallelized = parallelize(*split, {{"", colwise_parallel({.input = of.input})}}, *mesh, "tp");
  }
  // `gradient` of the whole output.
  void expect_gradients(const at::Tensor& input, const at::Tensor& whole_input, const Rank& self,
                        const TensorPlacement& placement) const {
    const auto chunk = [&](const at::Tensor& whole, int64_t dim) {
      return whole.chunk(2, dim)[self.rank];
    };
    const at::Tensor expected =
        placement.dim() ? chunk(whole_input.grad(), *placement.dim()) : whole_input.grad();
    EXPECT_TRUE(at::allclose(expected, input.grad()));
    EXPECT_TRUE(at::allclose(chunk(plain->weight.grad(), 0), split->weight.grad()));
    if (plain->bias.defined()) {
      EXPECT_TRUE(at::allclose(chunk(plain->bias.grad(), 0), split->bias.grad()));
    }
  }

  nn::Linear plain, split;
  std::optional<comms::World> world;
  std::optional<Mesh> mesh;
  std::shared_ptr<Parallelized> parallelized;
};

void expect_overlap(const Case& of, const Events& expected) {
  on_ranks(2, [&](Rank& self) {
    Layers layers(self, of);
    std::vector<int64_t> sizes = of.rows;
    sizes.push_back(kIn);
    const at::Tensor whole_input = tests::random_input(sizes, 3).requires_grad_();
    at::Tensor input = whole_input.detach();
    if (of.input.dim()) input = input.chunk(2, *of.input.dim())[self.rank];
    input = input.clone().requires_grad_();
    const at::Tensor plain_output = layers.plain->forward(whole_input);
    const at::Tensor weights =
        at::cos(at::arange(plain_output.numel(), at::kDouble)).view_as(plain_output);
    plain_output.backward(weights);
    const at::Tensor gradient = weights.chunk(2, -1)[self.rank];
    const at::Tensor output = modules::forward(layers.split, input);
    // Once more through the graph that is kept.
    EXPECT_EQ(events_of([&] { output.backward(gradient, /*retain_graph=*/true); }), expected);
    layers.expect_gradients(input, whole_input, self, of.input);
    for (const at::Tensor& each : {input, layers.split->weight, layers.split->bias})
      if (each.defined()) each.mutable_grad().reset();
    EXPECT_EQ(events_of([&] { output.backward(gradient); }), expected);
    layers.expect_gradients(input, whole_input, self, of.input);
    EXPECT_THROW(output.backward(gradient), c10::Error) << "the graph is freed";
  });
}

TEST(Overlap, OfAllReduceAndWeightGradient) {
  expect_overlap({}, kSum);
  expect_overlap({.bias = false}, kSum);
  expect_overlap({.rows = {6}}, kSum);
  expect_overlap({.bias = false, .rows = {6}}, kSum);
}

TEST(Overlap, OfReduceScatterAndWeightGradient) {
  for (const int dim : {0, 1}) {
    expect_overlap({.input = TensorPlacement::shard(dim)}, kScattered);
    expect_overlap({.bias = false, .input = TensorPlacement::shard(dim)}, kScattered);
  }
}

// I computes the gradient of the input, posts and waits; W computes, and communicates nothing.
TEST(Overlap, SplitBackward) {
  for (const bool bias : {true, false}) {
    on_ranks(2, [&](Rank& self) {
      Layers layers(self, {.bias = bias});
      const at::Tensor whole_input = tests::random_input({4, 6, kIn}, 3).requires_grad_();
      const at::Tensor input = whole_input.detach().clone().requires_grad_();
      layers.plain->forward(whole_input).sum().backward();
      autograd::NodeRange nodes;
      const at::Tensor output = modules::forward(layers.split, input);
      nodes.end();
      const auto work = std::make_shared<autograd::WeightWork>();
      at::Tensor gradient;
      EXPECT_EQ(events_of([&] {
                  gradient =
                      autograd::backward_input({autograd::root_of(output)}, {at::ones_like(output)},
                                               {input}, nodes, *work)[0];
                }),
                (Events{"products", "all-reduce", "wait"}));
      EXPECT_FALSE(layers.split->weight.grad().defined());
      EXPECT_EQ(events_of([&] { work->run(); }), Events{"products"});
      input.mutable_grad() = gradient;
      layers.expect_gradients(input, whole_input, self, TensorPlacement::replicate());
    });
  }
}

// After I, what W keeps does not keep the graph before the layer alive.
TEST(Overlap, SplitBackwardFreesWhatOnlyTheInputHalfNeeds) {
  on_ranks(2, [](Rank& self) {
    Layers layers(self, {});
    const at::Tensor leaf = tests::random_input({4, 6, kIn}, 3).requires_grad_();
    at::Tensor saved = leaf.detach() + 1;
    const c10::weak_intrusive_ptr<c10::TensorImpl> watched(saved.getIntrusivePtr());
    autograd::NodeRange nodes;
    at::Tensor output = modules::forward(layers.split, leaf * saved);
    nodes.end();
    saved.reset();
    EXPECT_FALSE(watched.expired());
    const auto work = std::make_shared<autograd::WeightWork>();
    static_cast<void>(autograd::backward_input({autograd::root_of(output)}, {at::ones_like(output)},
                                               {leaf}, nodes, *work));
    output.reset();
    EXPECT_TRUE(watched.expired());
    work->run();
  });
}

// A weight that is frozen has no gradient to hide communication under, and forwards that are more
// than a product communicate afterwards; all give the gradients of the whole layer.
TEST(Overlap, OtherwiseCommunicatesAfterwards) {
  on_ranks(2, [](Rank& self) {
    Layers layers(self, {.bias = false});
    const at::Tensor whole_input = tests::random_input({4, kIn}, 3).requires_grad_();
    const at::Tensor input = whole_input.detach().clone().requires_grad_();
    const auto gradient_of = [](const at::Tensor& output) { return at::ones_like(output); };
    const auto call = [&](const modules::ForwardHook::Function& function) {
      return modules::call(*layers.split, function, {input})[0];
    };
    // The input is used past the product, too.
    layers.plain->forward(whole_input).mul(whole_input.sum()).sum().backward();
    at::Tensor output = call([&](const modules::Tensors& in) {
      return modules::Tensors{layers.split->forward(in[0]) * in[0].sum()};
    });
    EXPECT_EQ(events_of([&] { output.backward(gradient_of(output)); }), kAfterwards);
    layers.expect_gradients(input, whole_input, self, TensorPlacement::replicate());

    // The result of the product is used by the output and, in forward or later, by something else.
    for (const bool in_forward : {true, false}) {
      for (const at::Tensor& each :
           {input, whole_input, layers.plain->weight, layers.split->weight})
        each.mutable_grad().reset();
      const at::Tensor product = layers.plain->forward(whole_input);
      (product + product.exp()).sum().backward();
      at::Tensor kept;
      output = call([&](const modules::Tensors& in) {
        kept = layers.split->forward(in[0]);
        const at::Tensor result = kept;
        if (in_forward) kept = kept.exp();
        return modules::Tensors{result};
      });
      output = output + (in_forward ? kept : kept.exp());
      EXPECT_EQ(events_of([&] { output.backward(gradient_of(output)); }),
                in_forward ? kAfterwards : kSum);
      layers.expect_gradients(input, whole_input, self, TensorPlacement::replicate());
    }

    input.mutable_grad().reset();
    whole_input.mutable_grad().reset();
    layers.split->weight.requires_grad_(false);
    layers.plain->forward(whole_input).sum().backward();
    output = modules::forward(layers.split, input);
    EXPECT_EQ(events_of([&] { output.backward(gradient_of(output)); }),
              (Events{"products", "all-reduce", "wait"}));
    EXPECT_TRUE(at::allclose(whole_input.grad(), input.grad()));
  });
}

// An output that is changed in place, as by relu_, afterwards.
TEST(Overlap, InPlaceOnTheOutput) {
  for (const std::vector<int64_t>& rows : {std::vector<int64_t>{6}, {4, 6}}) {
    on_ranks(2, [&](Rank& self) {
      const Case of{.rows = rows};
      Layers layers(self, of);
      std::vector<int64_t> sizes = rows;
      sizes.push_back(kIn);
      const at::Tensor whole_input = tests::random_input(sizes, 3).requires_grad_();
      const at::Tensor input = whole_input.detach().clone().requires_grad_();
      layers.plain->forward(whole_input).relu_().sum().backward();
      const at::Tensor loss = modules::forward(layers.split, input).relu_().sum();
      EXPECT_EQ(events_of([&] { loss.backward(); }), kSum);
      layers.expect_gradients(input, whole_input, self, of.input);
    });
  }
}

}  // namespace
}  // namespace pipewright::tp
