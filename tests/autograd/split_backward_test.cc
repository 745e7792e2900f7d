// I followed by W is bitwise equal to a full backward, also in cases in which PyTorch's split is
// wrong or raises. Each case runs with inputs that require a gradient, and as a first stage.
#include "pipewright/autograd/split_backward.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/ir/errors.h"
#include "tests/support/meter/meter.h"

namespace pipewright::autograd {
namespace {

using executor::ModuleStage;
using executor::Tensors;
using torch::autograd::variable_list;

bool same_bits(const variable_list& left, const variable_list& right) {
  return std::ranges::equal(left, right, [](const at::Tensor& a, const at::Tensor& b) {
    return a.defined() ? b.defined() && at::equal(a, b) : !b.defined();
  });
}

at::Tensor leaf(at::IntArrayRef sizes) { return at::randn(sizes).mul_(0.1).requires_grad_(); }

at::Tensor mlp(at::Tensor x, const variable_list& weights) {
  for (size_t i = 0; i < weights.size(); i += 2)
    x = at::linear(i ? at::relu(x) : x, weights[i], weights[i + 1]);
  return x;
}

// A pre-norm transformer block, width 64, 4 heads.
at::Tensor block(at::Tensor x, const variable_list& w) {
  const auto qkv = at::linear(at::layer_norm(x, {64}, w[0], w[1]), w[2], w[3])
                       .unflatten(-1, {3, 4, 16})
                       .transpose(1, 3)
                       .unbind(2);
  const at::Tensor mixed = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, true);
  x = x + at::linear(mixed.transpose(1, 2).reshape(x.sizes()), w[4], w[5]);
  const at::Tensor wide = at::gelu(at::linear(at::layer_norm(x, {64}, w[6], w[7]), w[8], w[9]));
  return x + at::linear(wide, w[10], w[11]);
}

struct Weights {
  const bool seeded = (at::manual_seed(0), true);  // before the others are drawn
  const variable_list p = {leaf({32, 32}), leaf({32}),     leaf({32, 32}),
                           leaf({32}),     leaf({32, 32}), leaf({32})};
  const variable_list q = {leaf({64}),      leaf({64}),  leaf({192, 64}), leaf({192}),
                           leaf({64, 64}),  leaf({64}),  leaf({64}),      leaf({64}),
                           leaf({256, 64}), leaf({256}), leaf({64, 256}), leaf({64}),
                           leaf({50, 64})};
  const variable_list lstm = {leaf({128, 32}), leaf({128, 32}), leaf({128}), leaf({128})};
  const at::Tensor x = leaf({8, 32}), kernel = leaf({4, 3, 3, 3});
};

struct Case {
  std::string name;
  std::function<variable_list(const Weights&)> weights;
  std::function<variable_list(const Weights&)> inputs;
  std::function<variable_list(const Weights&, const variable_list&)> net;
  size_t missing_grad = 99;  // which output gets no gradient
};

std::vector<Case> cases() {
  using W = const Weights&;
  using In = const variable_list&;
  using Out = variable_list;
  const auto p = [](W w) { return w.p; };
  const auto q = [](W w) { return w.q; };
  const auto x = [](W w) -> Out { return {w.x}; };
  std::vector<Case> cases = {
      {"MlpOfLinearAndRelu", p, x, [](W w, In in) -> Out { return {mlp(in[0], w.p)}; }},
      {"TransformerBlock", q,
       [](W) -> Out {
         return {leaf({2, 16, 64})};
       },
       [](W w, In in) -> Out { return {block(in[0], w.q)}; }},
      {"Conv2dMaxPoolLinear",
       [](W w) -> Out {
         return {w.kernel, w.p[0]};
       },
       [](W) -> Out {
         return {leaf({2, 3, 8, 8})};
       },
       [](W w, In in) -> Out {
         const at::Tensor h = at::max_pool2d(at::conv2d(in[0], w.kernel).relu(), 2);
         return {at::linear(h.flatten(1).slice(1, 0, 32), w.p[0])};
       }},
      {"EmbeddingTiedToTheOutputLayer", q,
       [](W) -> Out {
         return {at::randint(50, {2, 16})};
       },
       [](W w, In in) -> Out {
         return {at::linear(block(at::embedding(w.q[12], in[0].to(at::kLong)), w.q), w.q[12])};
       }},
      {"OneWeightInTwoLayers", p, x,
       [](W w, In in) -> Out {
         return {mlp(in[0], {w.p[0], w.p[1], w.p[0], w.p[1]})};
       }},
      {"ProductOfAWeightWithItself", p, x,
       [](W w, In in) -> Out { return {in[0].mm(w.p[0].mm(w.p[0]))}; }},
      {"OneWeightTwiceOnAPathAndAside", p, x,
       [](W w, In in) -> Out { return {in[0].mm(w.p[0]).mm(w.p[0]) * w.p[0].sum()}; }},
      {"ViewsCastsWeightNorm", p, x,
       [](W w, In in) -> Out {
         const at::Tensor view =
             w.p[0].view({-1}).view({32, 32}).t().to(at::kDouble).to(at::kFloat);
         return {in[0].mm(view).mm(w.p[2] * w.p[1] / w.p[2].norm())};
       }},
      {"Identity", p, x, [](W, In in) -> Out { return in; }},
      {"FrozenAndUnused", p, x,
       [](W w, In in) -> Out {
         return {mlp(in[0], {w.p[0].detach(), w.p[1], w.p[2], w.p[1].detach()})};
       }},
      {"LstmOneNodeWithThreeOutputs", [](W w) { return w.lstm; },
       [](W) -> Out {
         return {leaf({5, 3, 32}), leaf({1, 3, 32})};
       },
       [](W w, In in) -> Out {
         const auto [y, h, c] =
             at::lstm(in[0], {in[1], in[1]}, w.lstm, true, 1, 0.0, true, false, false);
         return {y, h, c};
       }},
      {"OutputsThatAreViews", p, x,
       [](W w, In in) -> Out { return at::linear(in[0], w.p[0]).unbind(0); }},
      {"HookOnATensorOfTheBoundary", p, x,
       [](W w, In in) -> Out {
         const at::Tensor h = at::linear(in[0], w.p[0], w.p[1]);
         h.register_hook([](const at::TensorBase& grad) { return at::Tensor(grad) * 2; });
         return {h.mm(w.p[2])};
       }},
      {"Checkpointed", q,
       [](W) -> Out {
         return {leaf({2, 16, 64})};
       },
       [](W w, In in) -> Out {
         const auto part = [&](In h) -> Out { return {block(h[0], w.q)}; };
         return {at::linear(checkpoint(part, checkpoint(part, {in[0] * 2}))[0], w.q[12])};
       }},
      {"CheckpointOfTwoInputsOneFromWeightsAlone", p, x,
       [](W w, In in) -> Out {
         const auto part = [&](In h) -> Out { return {at::linear(h[0], w.p[0]) * h[1]}; };
         return {checkpoint(part, {in[0], w.p[2].sum() * w.p[1]})[0].mm(w.p[4])};
       }},
      {"EmbeddingBeforeCheckpointsInCheckpoints", q,
       [](W) -> Out {
         return {at::randint(50, {2, 16})};
       },
       [](W w, In in) -> Out {
         const auto inner = [&](In h) -> Out { return {block(h[0], w.q)}; };
         const auto outer = [&, inner](In h) -> Out {
           return {at::linear(checkpoint(inner, {h[0] * 2})[0], w.q[4])};
         };
         const at::Tensor tokens = at::embedding(w.q[12], in[0].to(at::kLong));
         return {at::linear(checkpoint(outer, {tokens})[0], w.q[12])};
       }},
      {"CheckpointWithinACheckpointOfWeights", p, x,
       [](W w, In in) -> Out {
         const auto inner = [&](In h) -> Out { return {at::linear(h[0], w.p[2], w.p[3]).relu()}; };
         const auto outer = [&, inner](In h) -> Out {
           return {at::linear(checkpoint(inner, {h[0] * h[1]})[0], w.p[4], w.p[5])};
         };
         return checkpoint(outer, {in[0], w.p[1] * 2});
       }},
      {"CheckpointWithinACheckpoint", p, x,
       [](W w, In in) -> Out {
         const auto inner = [&](In h) -> Out { return {at::linear(h[0], w.p[2], w.p[3]).relu()}; };
         const auto outer = [&, inner](In h) -> Out {
           return {at::linear(checkpoint(inner, {at::linear(h[0], w.p[0])})[0], w.p[4], w.p[5])};
         };
         return checkpoint(outer, in);
       }},
  };
  // Input 2 is unused, outputs 2 and 4 do not depend on inputs.
  for (const size_t missing : {0, 1, 2, 99}) {
    cases.push_back({"ManyInputsAndOutputsWithoutGrad" + std::to_string(missing), p,
                     [](W w) -> Out {
                       return {w.x, leaf({8, 32}), leaf({3})};
                     },
                     [](W w, In in) -> Out {
                       const auto h = at::linear(in[0], w.p[0], w.p[1]).chunk(2, 1);
                       return {h[0] * in[1].slice(1, 0, 16), h[1].mm(w.p[2].slice(0, 0, 16)),
                               (w.p[2] * w.p[2]).sum(), in[1], at::ones({2})};
                     },
                     missing});
  }
  return cases;
}

class SplitBackward : public testing::TestWithParam<std::tuple<size_t, bool>> {};

TEST_P(SplitBackward, EqualsAFullBackwardBitForBit) {
  const auto [index, first_stage] = GetParam();
  const Case test = cases()[index];
  const Weights all;
  const variable_list weights = test.weights(all);
  variable_list inputs;
  for (const at::Tensor& input : test.inputs(all))
    inputs.push_back(first_stage ? input.detach() : input);
  const auto forward = [&](const Tensors& in) { return test.net(all, in); };

  // The reference: a full backward by autograd. Each forward adds its hooks again.
  variable_list grads;
  at::Tensor loss = at::zeros({});
  for (const at::Tensor& output : forward(inputs)) {
    grads.push_back(grads.size() == test.missing_grad ? at::Tensor() : at::randn_like(output));
    if (grads.back().defined()) loss = loss + (output * grads.back()).sum();
  }
  if (loss.requires_grad()) loss.backward();
  const variable_list want_inputs = take_grads(inputs), want_weights = take_grads(weights);

  ModuleStage stage(forward);
  stage.forward(0, inputs);
  EXPECT_TRUE(same_bits(stage.backward(0, grads), want_inputs)) << "B, inputs";
  EXPECT_TRUE(same_bits(take_grads(weights), want_weights)) << "B, weights";
  stage.forward(1, inputs);
  EXPECT_TRUE(same_bits(stage.backward_input(1, grads), want_inputs)) << "I";
  EXPECT_TRUE(same_bits(take_grads(weights), variable_list(weights.size()))) << "I and weights";
  stage.backward_weight(1);
  EXPECT_TRUE(same_bits(take_grads(weights), want_weights)) << "W";
  EXPECT_TRUE(same_bits(take_grads(inputs), variable_list(inputs.size()))) << "W and inputs";
}

INSTANTIATE_TEST_SUITE_P(Cases, SplitBackward,
                         testing::Combine(testing::Range<size_t>(0, cases().size()),
                                          testing::Bool()),
                         [](const auto& of) {
                           return cases()[std::get<0>(of.param)].name +
                                  (std::get<1>(of.param) ? "FirstStage" : "");
                         });

TEST(SplitBackwardOf, FourMicrobatchesInAnyOrder) {
  const Weights all;
  const Tensors& w = all.q;
  ModuleStage stage([&](const Tensors& in) { return Tensors{block(in[0], w)}; });
  Tensors inputs, grads;
  for (int m = 0; m < 4; ++m) {
    inputs.push_back(leaf({2, 16, 64}));
    grads.push_back(at::randn({2, 16, 64}));
  }
  const std::vector<size_t> order = {2, 0, 3, 1};
  for (const size_t m : order) block(inputs[m], w).backward(grads[m]);
  const Tensors want = take_grads(w), want_inputs = take_grads(inputs);
  for (int m = 0; m < 4; ++m) stage.forward(m, {inputs[static_cast<size_t>(m)]});
  for (size_t m = 0; m < 4; ++m) {
    EXPECT_TRUE(same_bits(stage.backward_input(static_cast<int>(m), {grads[m]}), {want_inputs[m]}));
  }
  for (const size_t m : order) stage.backward_weight(static_cast<int>(m));
  EXPECT_TRUE(same_bits(take_grads(w), want));
}

// Linear, gelu, Linear. After F the stage stores gelu's input, gelu's output, which the second
// Linear saved, and the stage's output until the caller drops it. After I gelu's input is freed,
// and the gradient at the first Linear is stored. After W only the gradients of the weights are
// left.
TEST(SplitBackwardOf, KeepsTheLeastPossible) {
  at::manual_seed(0);
  const Tensors w = {leaf({512, 512}), leaf({512}), leaf({512, 512}), leaf({512})};
  const at::Tensor big = leaf({64, 512}), grad = at::randn({64, 512});
  for (const at::Tensor& input : {big, big.detach()}) {
    ModuleStage stage([&](const Tensors& in) {
      return Tensors{at::linear(at::gelu(at::linear(in[0], w[0], w[1])), w[2], w[3])};
    });
    const tests::Meter meter;
    const int64_t activation = 64 * 512 * 4, weights = 2 * (512 * 512 + 512) * 4;
    Tensors output = stage.forward(0, {input});
    EXPECT_EQ(meter.bytes(), 3 * activation);
    output.clear();
    EXPECT_EQ(meter.bytes(), 2 * activation);
    stage.backward_input(0, {grad});
    EXPECT_EQ(meter.bytes(), 2 * activation);
    stage.backward_weight(0);
    EXPECT_EQ(meter.bytes(), weights);
    take_grads(w);
  }
}

// A post hook on AccumulateGrad, as c10d::Reducer and FSDP use them.
class CountCalls final : public torch::autograd::FunctionPostHook {
 public:
  explicit CountCalls(int* calls) : calls_(calls) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    ++*calls_;
    return outputs;
  }

 private:
  int* calls_;
};

TEST(SplitBackwardOf, HooksOfWeightsRunOnceInW) {
  const Weights all;
  const at::Tensor w = all.p[0];
  int calls = 0;
  const auto accumulator =
      torch::autograd::impl::grad_accumulator(w);  // the weight does not own it
  accumulator->add_post_hook(std::make_unique<CountCalls>(&calls));
  ModuleStage stage([&](const Tensors& in) {
    const auto part = [&](const Tensors& h) { return Tensors{at::linear(h[0], w)}; };
    return Tensors{at::linear(checkpoint(part, {at::linear(in[0], w).relu()})[0], w)};
  });
  stage.forward(0, {all.x});
  stage.backward_input(0, {at::randn({8, 32})});
  EXPECT_EQ(calls, 0);
  stage.backward_weight(0);
  EXPECT_EQ(calls, 1);
}

TEST(SplitBackwardOf, AStagesOwnWeightWork) {
  const Weights all;
  int made = 0, done = 0;
  ModuleStage stage(
      [&](const Tensors& in) { return Tensors{at::linear(in[0], all.p[0].detach())}; });
  stage.set_weight_work([&] {
    ++made;
    return [&] { ++done; };
  });
  const at::Tensor grad = at::randn({8, 32});
  stage.forward(0, {all.x});
  const Tensors dx = stage.backward_input(0, {grad});
  EXPECT_TRUE(at::allclose(dx[0], grad.mm(all.p[0].detach())));
  EXPECT_EQ(made, 1);
  EXPECT_EQ(done, 0);
  stage.backward_weight(0);
  EXPECT_EQ(done, 1);
  stage.forward(1, {all.x});
  stage.backward(1, {grad});
  EXPECT_EQ(made, 2);
  EXPECT_EQ(done, 2);
}

TEST(SplitBackwardOf, ErrorsNameTheMicrobatch) {
  ModuleStage stage([](const Tensors& in) { return in; });
  try {
    stage.backward(3, {at::ones({1})});
    FAIL();
  } catch (const ContractError& error) {
    EXPECT_STREQ(error.what(), "backward of microbatch 3: expected its forward before, got none");
  }
}

TEST(Checkpoint, RunsForwardTwiceAndDrawsTheSame) {
  int runs = 0;
  const at::Tensor w = leaf({32, 32});
  const auto part = [&](const Tensors& in) -> Tensors {
    ++runs;
    return {at::dropout(in[0].mm(w), 0.5, /*train=*/true)};
  };
  const at::Tensor x = leaf({8, 32});
  at::manual_seed(7);
  part({x})[0].sum().backward();
  const Tensors want = take_grads({x, w});
  const at::Tensor next = at::rand({1});
  runs = 0;
  for (const bool split : {false, true}) {
    at::manual_seed(7);
    ModuleStage stage([&](const Tensors& in) { return checkpoint(part, in); });
    const Tensors output = stage.forward(0, {x});
    const at::Tensor grad = at::ones_like(output[0]);
    // What is drawn between forward and backward is not affected.
    EXPECT_TRUE(at::equal(at::rand({1}), next));
    const at::Generator state = at::detail::getDefaultCPUGenerator().clone();
    Tensors dx;
    if (split) {
      dx = stage.backward_input(0, {grad});
      stage.backward_weight(0);
    } else {
      dx = stage.backward(0, {grad});
    }
    EXPECT_TRUE(same_bits({dx[0], take_grads({w})[0]}, want)) << split;
    EXPECT_TRUE(at::equal(at::rand({4}), at::rand({4}, state)));
  }
  EXPECT_EQ(runs, 4);
}

// After an embedding, whose gradient belongs to W, a part is on the boundary.
TEST(Checkpoint, RunsForwardTwiceInAFirstStage) {
  int runs = 0;
  const at::Tensor table = leaf({10, 32}), w = leaf({32, 32});
  const auto part = [&](const Tensors& in) -> Tensors {
    ++runs;
    return {in[0].mm(w).relu()};
  };
  ModuleStage stage([&](const Tensors& in) {
    return checkpoint(part, checkpoint(part, {at::embedding(table, in[0])}));
  });
  stage.forward(0, {at::arange(8)});
  stage.backward_input(0, {at::ones({8, 32})});
  EXPECT_FALSE(table.grad().defined() || w.grad().defined());
  stage.backward_weight(0);
  EXPECT_TRUE(table.grad().defined() && w.grad().defined());
  EXPECT_EQ(runs, 4);
}

TEST(Checkpoint, KeepsOnlyItsInputs) {
  const at::Tensor w = leaf({32, 32});
  const at::Tensor x = leaf({8, 32});
  c10::weak_intrusive_ptr<at::TensorImpl> inside(at::ones({1}).getIntrusivePtr());
  const at::Tensor y = checkpoint(
      [&](const Tensors& in) -> Tensors {
        const at::Tensor hidden = in[0].mm(w).relu();
        inside = c10::weak_intrusive_ptr<at::TensorImpl>(hidden.getIntrusivePtr());
        return {hidden.mm(w)};
      },
      {x})[0];
  EXPECT_TRUE(inside.expired());
  EXPECT_TRUE(y.requires_grad());
}

// The second forward runs under the autocast of the first one, wherever backward is called.
TEST(Checkpoint, RestoresAutocast) {
  const at::Tensor w = leaf({8, 8}), x = leaf({4, 8});
  const Forward part = [&](const variable_list& in) -> variable_list {
    return {at::linear(in[0], w).tanh()};
  };
  const auto grads_of = [&](const std::function<at::Tensor()>& forward) {
    w.mutable_grad().reset();
    x.mutable_grad().reset();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
    const at::Tensor output = forward();
    at::autocast::decrement_nesting();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    output.to(at::kFloat).sum().backward();
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    return variable_list{w.grad(), x.grad()};
  };
  const variable_list plain = grads_of([&] { return part({x})[0]; });
  EXPECT_TRUE(same_bits(grads_of([&] { return checkpoint(part, {x})[0]; }), plain));
}

TEST(Checkpoint, OutputsThatNeedNoGradientStaySo) {
  const at::Tensor w = leaf({8, 8}), x = leaf({4, 8}), mask = at::ones({4, 8});
  const variable_list outputs = checkpoint(
      [&](const variable_list& in) -> variable_list {
        return {at::linear(in[0], w) * in[1], in[1], in[1].view({8, 4})};
      },
      {x, mask});
  EXPECT_TRUE(outputs[0].requires_grad());
  EXPECT_FALSE(outputs[1].requires_grad());
  EXPECT_FALSE(outputs[2].requires_grad());
  outputs[0].sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

// Whether an output that is computed in the part needs a gradient is known only when the part runs
// again: the gradient that it receives until then has no effect.
TEST(Checkpoint, TheGradientOfAnOutputThatNeedsNoneIsIgnored) {
  const at::Tensor w = leaf({8, 8}), x = leaf({4, 8}), mask = at::rand({4, 8});
  const auto part = [&](const variable_list& in) -> variable_list {
    return {at::linear(in[0], w), in[1] * 2};
  };
  const auto grads_of = [&](const variable_list& outputs) {
    (outputs[0] * outputs[1]).sum().backward();
    return take_grads({x, w});
  };
  const variable_list plain = grads_of(part({x, mask}));
  EXPECT_TRUE(same_bits(grads_of(checkpoint(part, {x, mask})), plain));
  ModuleStage stage([&](const Tensors& in) { return checkpoint(part, in); });
  const Tensors outputs = stage.forward(0, {x, mask});
  const Tensors dx = stage.backward_input(0, {outputs[1].detach(), outputs[0].detach()});
  stage.backward_weight(0);
  EXPECT_TRUE(same_bits({dx[0], take_grads({w})[0]}, plain));
  EXPECT_FALSE(dx[1].defined());
}

TEST(Checkpoint, WithoutGradModeItIsACall) {
  const c10::AutoGradMode disabled(false);
  const at::Tensor y =
      checkpoint([](const Tensors& in) { return Tensors{in[0] * 2}; }, {leaf({3})})[0];
  EXPECT_FALSE(y.requires_grad());
}

}  // namespace
}  // namespace pipewright::autograd
