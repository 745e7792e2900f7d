// Checkpointed parts that keep the results of some operators.
#include "pipewright/autograd/kept_results.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/ir/errors.h"
#include "tests/support/meter/meter.h"

namespace pipewright::autograd {
namespace {

using Tensors = std::vector<at::Tensor>;

bool same_bits(const Tensors& left, const Tensors& right) {
  return std::ranges::equal(left, right,
                            [](const auto& a, const auto& b) { return at::equal(a, b); });
}

at::Tensor leaf(at::IntArrayRef sizes) { return at::randn(sizes).mul_(0.1).requires_grad_(); }

constexpr int64_t kRows = 16, kDim = 32, kWide = 128;

// x -> gelu(x U) V
struct Mlp {
  const bool seeded = (at::manual_seed(0), true);  // before the others are drawn
  const at::Tensor x = leaf({kRows, kDim}), up = leaf({kDim, kWide}), down = leaf({kWide, kDim});
  Tensors operator()(const Tensors& in) const { return {at::gelu(in[0].mm(up)).mm(down)}; }
  Tensors grads() const { return take_grads({x, up, down}); }
};

// Attention, convolution, normalization and what is between them.
struct Mixed {
  const bool seeded = (at::manual_seed(1), true);
  const at::Tensor x = leaf({2, 4, 8, 16}), kernel = leaf({4, 4, 3, 3}), w = leaf({16, 48}),
                   b = leaf({48}), scale = leaf({16}), out = leaf({16, 16});
  Tensors operator()(const Tensors& in) const {
    const at::Tensor h = at::relu(at::conv2d(in[0], kernel, {}, 1, 1));
    const auto qkv = at::addmm(b, at::layer_norm(h, {16}, scale).reshape({64, 16}), w)
                         .view({2, 4, 8, 3, 16})
                         .unbind(3);
    const at::Tensor mixed =
        at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, /*dropout_p=*/0.0, true);
    return {at::silu(h + at::linear(mixed, out)), h.mean()};
  }
  Tensors grads() const { return take_grads({x, kernel, w, b, scale, out}); }
};

// The gradients of the plain model, of a part with the policy, and of one as a stage whose backward
// is split, in every bit.
template <typename Model>
void expect_same_gradients(const Model& model, const KeepPolicy& policy) {
  const auto backward = [](const Tensors& outputs) {
    at::Tensor sum = at::zeros({});
    for (const at::Tensor& output : outputs) sum = sum + output.square().sum();
    sum.backward();
  };
  backward(model({model.x}));
  const Tensors plain = model.grads();
  backward(checkpoint([&](const Tensors& in) { return model(in); }, {model.x}, policy));
  EXPECT_TRUE(same_bits(model.grads(), plain));

  executor::ModuleStage stage([&](const Tensors& in) { return model(in); });
  stage.set_recompute(true);
  stage.set_keep_policy(policy);
  const Tensors outputs = stage.forward(0, {model.x});
  Tensors output_grads;
  for (const at::Tensor& output : outputs) output_grads.push_back(output.detach() * 2);
  stage.recompute(0);
  const Tensors dx = stage.backward_input(0, output_grads);
  stage.backward_weight(0);
  Tensors grads = model.grads();
  grads[0] = dx[0];
  EXPECT_TRUE(same_bits(grads, plain));
}

TEST(KeepPolicy, GradientsAreThoseOfThePlainModel) {
  for (const KeepPolicy& policy :
       {KeepPolicy(), KeepPolicy::matrix_products(), KeepPolicy({"aten::gelu", "aten::silu"}),
        KeepPolicy({"aten::mm", "aten::convolution", "aten::native_layer_norm"})}) {
    expect_same_gradients(Mlp(), policy);
    expect_same_gradients(Mixed(), policy);
  }
}

// Between forward and backward. The input and the output are in memory in any case, and each part
// has the state of the generator.
TEST(KeepPolicy, KeepsTheseResultsOnly) {
  const Mlp mlp;
  const auto held = [&](const std::function<Tensors(const Tensors&)>& call) {
    const tests::Meter meter;
    Tensors outputs = call({mlp.x});
    const at::Tensor grad = at::ones_like(outputs[0]);
    const int64_t bytes = meter.bytes() - static_cast<int64_t>(outputs[0].nbytes() + grad.nbytes());
    outputs[0].backward(grad);
    mlp.grads();
    outputs.clear();
    EXPECT_EQ(meter.bytes(), static_cast<int64_t>(grad.nbytes()));  // nothing is left
    return bytes / static_cast<int64_t>(sizeof(float) * kRows);
  };
  const auto with = [&](const KeepPolicy& policy) {
    return [&mlp, policy](const Tensors& in) { return checkpoint(mlp, in, policy); };
  };
  EXPECT_EQ(held(mlp), 2 * kWide);  // before and after gelu
  const int64_t generator = held(with({}));
  EXPECT_LT(generator, kWide);
  EXPECT_EQ(held(with(KeepPolicy({"aten::gelu"}))), generator + kWide);
  EXPECT_EQ(held(with(KeepPolicy::matrix_products())), generator + kWide);
}

// If the weight changes meanwhile, what is computed again changes too.
TEST(KeepPolicy, DoesNotComputeThemAgain) {
  const Mlp mlp;
  const at::Tensor scale = at::ones({kDim});
  const auto attention = [&](const Tensors& in) -> Tensors {
    const at::Tensor x = in[0].view({1, 1, kRows, kDim});
    const at::Tensor mixed = at::scaled_dot_product_attention(x * scale, x, x);
    return {mixed.view({kRows, kDim}).mm(mlp.up).mm(mlp.down)};
  };
  // The gradient of the last weight tells what the second forward gave to it.
  const auto down_grad = [&](const Forward& part, const at::Tensor& changed,
                             const KeepPolicy& policy, double change) {
    const at::Tensor y = checkpoint(part, {mlp.x}, policy)[0], before = changed.detach().clone();
    changed.data().add_(change);
    y.sum().backward();
    changed.data().copy_(before);
    return mlp.grads()[2];
  };
  const std::pair<Forward, at::Tensor> cases[] = {{mlp, mlp.up}, {attention, scale}};
  for (const auto& [part, changed] : cases) {
    const at::Tensor right = down_grad(part, changed, {}, 0);
    EXPECT_FALSE(at::equal(down_grad(part, changed, {}, 1), right));
    EXPECT_TRUE(at::equal(down_grad(part, changed, KeepPolicy::matrix_products(), 1), right));
  }
  const KeepPolicy only_attention({"aten::_scaled_dot_product_flash_attention_for_cpu"});
  const at::Tensor right = down_grad(attention, scale, {}, 0);
  EXPECT_TRUE(at::equal(down_grad(attention, scale, only_attention, 1), right));
}

TEST(KeepPolicy, BackwardMayKeepTheGraph) {
  const Mlp mlp;
  const at::Tensor y = checkpoint(mlp, {mlp.x}, KeepPolicy::matrix_products())[0].sum();
  y.backward({}, /*retain_graph=*/true);
  const Tensors first = mlp.grads();
  y.backward();
  EXPECT_TRUE(same_bits(mlp.grads(), first));
}

// A part in a part has results of its own, and those of the outer one are those of its operators.
TEST(KeepPolicy, Nests) {
  const Mlp inner;
  const at::Tensor w = leaf({kDim, kDim});
  const auto grads_of = [&](const std::function<Tensors(const Tensors&)>& call) {
    call({inner.x})[0].square().sum().backward();
    Tensors grads = inner.grads();
    grads.push_back(take_grads({w})[0]);
    return grads;
  };
  const auto around = [&](const std::function<Tensors(const Tensors&)>& part) {
    return [&w, part](const Tensors& in) {
      return Tensors{at::tanh(part({at::tanh(in[0].mm(w))})[0]).mm(w)};
    };
  };
  const Tensors plain = grads_of(around(inner));
  for (const KeepPolicy& inside : {KeepPolicy(), KeepPolicy({"aten::gelu"})}) {
    const auto outer = around([&](const Tensors& in) { return checkpoint(inner, in, inside); });
    EXPECT_TRUE(same_bits(grads_of([&](const Tensors& in) {
                            return checkpoint(outer, in, KeepPolicy::matrix_products());
                          }),
                          plain));
  }
}

// Its dropout would otherwise draw in the first forward only.
TEST(KeepPolicy, ComputesWhatDrawsAgain) {
  const Mixed model;
  const auto part = [&](const Tensors& in) -> Tensors {
    const at::Tensor y = at::scaled_dot_product_attention(in[0], in[0], in[0], {}, 0.5);
    return {std::get<0>(at::native_dropout(y.matmul(model.out), 0.5, true))};
  };
  const auto grads_of = [&](const std::function<Tensors(const Tensors&)>& call) {
    const GeneratorScope generator(7);
    call({model.x})[0].sum().backward();
    return take_grads({model.x, model.out});
  };
  const KeepPolicy policy({"aten::mm", "aten::bmm", "aten::native_dropout", "aten::bernoulli"});
  EXPECT_TRUE(same_bits(grads_of([&](const Tensors& in) { return checkpoint(part, in, policy); }),
                        grads_of(part)));
}

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// A result that the part itself writes to is copied before, also where the write goes through a
// tensor with a version of its own, as at::linear's of an input that is not contiguous does.
TEST(KeepPolicy, APartMayWriteToItsResults) {
  const Mlp mlp;
  const at::Tensor bias = leaf({kWide}), other_bias = leaf({kWide});
  const auto part = [&](const Tensors& in) -> Tensors {
    const at::Tensor x = in[0].view({2, kRows / 2, kDim}).transpose(0, 1);
    const at::Tensor h = at::linear(x, mlp.down, other_bias).relu_();
    return {at::linear(h.matmul(mlp.down).add_(1).tanh(), mlp.up.t(), bias)};
  };
  const auto grads_of = [&](const std::function<Tensors(const Tensors&)>& call) {
    call({mlp.x})[0].square().sum().backward();
    return take_grads({mlp.x, mlp.up, mlp.down, bias, other_bias});
  };
  const auto plain = [&](const Tensors& in) -> Tensors {
    const at::Tensor x = in[0].view({2, kRows / 2, kDim}).transpose(0, 1);
    const at::Tensor h = at::linear(x, mlp.down, other_bias).relu();
    return {at::linear((h.matmul(mlp.down) + 1).tanh(), mlp.up.t(), bias)};
  };
  EXPECT_TRUE(same_bits(grads_of([&](const Tensors& in) {
                          return checkpoint(part, in, KeepPolicy::matrix_products());
                        }),
                        grads_of(plain)));
}

// What is written later, through the result or through an output in its memory, is not seen in
// time.
TEST(KeepPolicy, RefusesLaterWrites) {
  const Mlp mlp;
  const auto unsafe_view = [&](const Tensors& in) {
    return Tensors{at::_unsafe_view(mlp(in)[0], {2, kRows / 2, kDim})};
  };
  for (const Forward& part : {Forward(mlp), Forward(unsafe_view)}) {
    at::Tensor y = checkpoint(part, {mlp.x}, KeepPolicy::matrix_products())[0];
    y.add_(1);
    EXPECT_EQ(error_of([&] { y.sum().backward(); }),
              "checkpoint: a result of `aten::mm`, which a part keeps for its second forward, was "
              "written in place: expected no such write, or a policy that does not keep it");
  }
}

TEST(KeepPolicy, RefusesAnotherSecondForward) {
  const Mlp mlp;
  const auto error = [&](const std::function<at::Tensor(const at::Tensor& x)>& second) {
    bool is_first = true;
    const auto part = [&](const Tensors& in) -> Tensors {
      return {at::tanh(std::exchange(is_first, false) ? in[0].mm(mlp.up) : second(in[0]))};
    };
    const at::Tensor y = checkpoint(part, {mlp.x}, KeepPolicy::matrix_products())[0];
    return error_of([&] { y.sum().backward(); });
  };
  const std::string expected =
      "checkpoint: expected a part to call the same operators in both forwards, but the second "
      "one ";
  EXPECT_EQ(error([&](const at::Tensor& x) { return (x.unsqueeze(2) * mlp.up).sum(1); }),
            expected + "did not call `aten::mm` once more");
  EXPECT_EQ(error([&](const at::Tensor& x) { return x.mm(mlp.up).mm(mlp.down).mm(mlp.up); }),
            expected + "called `aten::mm` once more");
  EXPECT_EQ(error([&](const at::Tensor& x) {
              return at::bmm(x.unsqueeze(0), mlp.up.unsqueeze(0)).squeeze(0);
            }),
            expected + "called `aten::bmm` in place of `aten::mm`");
}

TEST(KeepPolicy, RefusesOperatorsThatItCannotKeep) {
  const auto error = [](const char* name) {
    return error_of([&] { KeepPolicy({"aten::mm", name}); });
  };
  const std::string expected =
      ": expected an operator of LibTorch that computes new tensors, such as `aten::mm`, got ";
  EXPECT_EQ(error("aten::nn"), "KeepPolicy: `aten::nn`" + expected + "no such operator");
  EXPECT_EQ(error("mm"), "KeepPolicy: `mm`" + expected + "another library's");
  EXPECT_EQ(error("aten::linear"),
            "KeepPolicy: `aten::linear`" + expected + "one that calls others: name those");
  for (const char* name : {"aten::relu_", "aten::view"}) {
    EXPECT_EQ(error(name), std::string("KeepPolicy: `") + name + "`" + expected +
                               "one that writes to an argument or returns a view of one");
  }
}

}  // namespace
}  // namespace pipewright::autograd
