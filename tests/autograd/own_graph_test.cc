// What a split backward does to nodes that are not, or not only, those of one microbatch, and to
// nodes that do more than compute gradients. The model without a pipeline is the judge.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <string>
#include <vector>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/autograd/split_backward.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/ir/errors.h"

namespace pipewright::autograd {
namespace {

using executor::ModuleStage;
using executor::Tensors;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor leaf(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble).mul_(0.3).requires_grad_();
}

// F0 F1, then the backwards in this order; the number of a microbatch follows each letter.
const std::vector<std::string> kOrders = {"I0 W0 I1 W1", "I0 I1 W0 W1", "I1 I0 W0 W1",
                                          "B0 B1",       "I0 B1 W0",    "B1 I0 W0"};

void run(ModuleStage& stage, const std::string& order, const std::vector<Tensors>& grads,
         std::vector<Tensors>* input_grads = nullptr) {
  for (size_t i = 0; i < order.size(); i += 3) {
    const int m = order[i + 1] - '0';
    const Tensors& of = grads[static_cast<size_t>(m)];
    if (order[i] == 'W') {
      stage.backward_weight(m);
      continue;
    }
    Tensors result = order[i] == 'I' ? stage.backward_input(m, of) : stage.backward(m, of);
    if (input_grads) (*input_grads)[static_cast<size_t>(m)] = std::move(result);
  }
}

void expect_close(const Tensors& found, const Tensors& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].defined(), expected[i].defined()) << what << ", tensor " << i;
    if (found[i].defined()) {
      EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-12, 1e-12))
          << what << ", tensor " << i << ": " << found[i] << expected[i];
    }
  }
}

// The gradient of (w1 + w2) * 2 is twice the sum of the microbatches' gradients.
TEST(OwnGraph, ABiasComputedBeforeTheStep) {
  for (const bool with_input_grads : {false, true}) {
    for (const std::string& order : kOrders) {
      const at::Tensor w1 = at::zeros({3}).requires_grad_(), w2 = at::zeros({3}).requires_grad_(),
                       w3 = at::zeros({3}).requires_grad_();
      const at::Tensor bias = (w1 + w2) * 2 + w3;
      ModuleStage stage([&](const Tensors& in) { return Tensors{in[0] + bias}; });
      for (const int m : {0, 1}) stage.forward(m, {at::ones({3}).requires_grad_(with_input_grads)});
      run(stage, order,
          {{at::tensor({1., 2., 3.}).to(at::kFloat)},
           {at::tensor({10., 20., 30.}).to(at::kFloat)}});
      const at::Tensor sum = at::tensor({11.f, 22.f, 33.f});
      EXPECT_TRUE(at::equal(w1.grad(), 2 * sum)) << order;
      EXPECT_TRUE(at::equal(w2.grad(), 2 * sum)) << order;
      EXPECT_TRUE(at::equal(w3.grad(), sum)) << order;
    }
  }
}

// Graphs with saved tensors, which a backward of LibTorch frees: the stages give the gradient of
// the sum of all losses.
TEST(OwnGraph, ExpressionsOfWeightsWithSavedTensors) {
  for (const bool with_input_grads : {false, true}) {
    for (const std::string& order : kOrders) {
      at::manual_seed(0);
      const Tensors w = {leaf({4, 4}), leaf({4, 4}), leaf({4})};
      const at::Tensor weight = w[0].mm(w[1]).tanh();
      int hook_calls = 0;
      weight.register_hook([&](const at::TensorBase&) { ++hook_calls; });
      // The product is used twice, and w[1] also by itself.
      const auto net = [&](const at::Tensor& x) {
        return (x.mm(weight).tanh() + w[2]).mm(w[1]).mm(weight);
      };
      std::vector<Tensors> inputs, grads, input_grads(2), expected_input_grads;
      at::Tensor loss = at::zeros({}, at::kDouble);
      for (int m = 0; m < 2; ++m) {
        inputs.push_back({leaf({2, 4}).detach().requires_grad_(with_input_grads)});
        grads.push_back({at::randn({2, 4}, at::kDouble)});
        loss = loss + (net(inputs.back()[0]) * grads.back()[0]).sum();
      }
      loss.backward({}, /*retain_graph=*/true);
      const Tensors expected = take_grads(w);
      for (const Tensors& in : inputs) expected_input_grads.push_back(take_grads(in));
      hook_calls = 0;

      ModuleStage stage([&](const Tensors& in) { return Tensors{net(in[0])}; });
      for (const int m : {0, 1}) stage.forward(m, inputs[static_cast<size_t>(m)]);
      run(stage, order, grads, &input_grads);
      expect_close(take_grads(w), expected, order);
      for (const size_t m : {0, 1}) expect_close(input_grads[m], expected_input_grads[m], order);
      EXPECT_EQ(hook_calls, 2) << order;  // once per microbatch
    }
  }
}

// A part of a forward that backward repeats may use tensors that were computed around it, also such
// that lead to the stage's input, which the rest of the stage uses as well.
TEST(OwnGraph, ACheckpointedPartUsesTensorsFromOutside) {
  for (const bool with_input_grads : {false, true}) {
    for (const std::string& order : kOrders) {
      at::manual_seed(0);
      const Tensors w = {leaf({4, 4}), leaf({4, 4}), leaf({4, 4}), leaf({4})};
      const auto net = [&](const at::Tensor& x, bool checkpoints) {
        const at::Tensor h = x.mm(w[0]).tanh();
        const at::Tensor gain = (w[3] * w[3]).tanh();
        const Forward part = [&w, h, gain](const Tensors& in) {
          return Tensors{(in[0].mm(w[1]) * h * gain).tanh().mm(w[2])};
        };
        const Tensors in = {x * 2};
        const at::Tensor y = checkpoints ? checkpoint(part, in)[0] : part(in)[0];
        return (y + h).mm(w[1]) * gain;
      };
      std::vector<Tensors> inputs, grads, input_grads(2), expected_input_grads;
      for (int m = 0; m < 2; ++m) {
        inputs.push_back({leaf({2, 4}).detach().requires_grad_(with_input_grads)});
        grads.push_back({at::randn({2, 4}, at::kDouble)});
        net(inputs.back()[0], false).backward(grads.back()[0]);
      }
      const Tensors expected = take_grads(w);
      for (const Tensors& in : inputs) expected_input_grads.push_back(take_grads(in));

      ModuleStage stage([&](const Tensors& in) { return Tensors{net(in[0], true)}; });
      for (const int m : {0, 1}) stage.forward(m, inputs[static_cast<size_t>(m)]);
      run(stage, order, grads, &input_grads);
      expect_close(take_grads(w), expected, order);
      for (const size_t m : {0, 1}) expect_close(input_grads[m], expected_input_grads[m], order);
    }
  }
}

// The same with one of the stage's inputs, which the part does not take as its own.
TEST(OwnGraph, ACheckpointedPartUsesAnInputOfTheStage) {
  for (const std::string& order : kOrders) {
    at::manual_seed(0);
    const at::Tensor w = leaf({4, 4});
    std::vector<Tensors> inputs, grads, input_grads(2);
    for (int m = 0; m < 2; ++m) {
      // Only the input from outside requires a gradient.
      inputs.push_back({leaf({2, 4}).detach(), leaf({2, 4})});
      grads.push_back({at::randn({2, 4}, at::kDouble)});
    }
    ModuleStage stage([&](const Tensors& in) {
      const Forward part = [&w, x = in[1]](const Tensors& h) { return Tensors{h[0].mm(w) * x}; };
      return checkpoint(part, {in[0]});
    });
    for (const int m : {0, 1}) stage.forward(m, inputs[static_cast<size_t>(m)]);
    run(stage, order, grads, &input_grads);
    for (const size_t m : {0, 1}) {
      const at::Tensor grad = grads[m][0], product = inputs[m][0].mm(w).detach();
      expect_close(input_grads[m], {at::Tensor(), grad * product}, order);
    }
  }
}

// As above; the part writes what it takes from outside into a view.
TEST(OwnGraph, ACheckpointedPartWritesAnInputOfTheStageIntoAView) {
  for (const std::string& order : kOrders) {
    at::manual_seed(0);
    const at::Tensor w = leaf({4, 4});
    const auto net = [&](const Tensors& in, bool checkpoints) {
      const Forward part = [&w, x = in[1]](const Tensors& h) {
        at::Tensor y = h[0] * 1;
        y.narrow(1, 0, 2).mul_(w.narrow(0, 0, 1).narrow(1, 0, 2)).add_(x.narrow(1, 1, 2));
        return Tensors{y.tanh()};
      };
      return checkpoints ? checkpoint(part, {in[0]})[0] : part({in[0]})[0];
    };
    std::vector<Tensors> inputs, grads, input_grads(2), expected;
    for (int m = 0; m < 2; ++m) {
      inputs.push_back({leaf({2, 4}), leaf({2, 4})});
      grads.push_back({at::randn({2, 4}, at::kDouble)});
      net(inputs.back(), false).backward(grads.back()[0]);
    }
    const Tensors expected_weights = take_grads({w});
    for (const Tensors& in : inputs) expected.push_back(take_grads(in));
    ModuleStage stage([&](const Tensors& in) { return Tensors{net(in, true)}; });
    for (const int m : {0, 1}) stage.forward(m, inputs[static_cast<size_t>(m)]);
    run(stage, order, grads, &input_grads);
    for (const size_t m : {0, 1}) expect_close(input_grads[m], expected[m], order);
    expect_close(take_grads({w}), expected_weights, order);
  }
}

// What one microbatch's I has consumed cannot be used by another: an error, never a wrong gradient.
TEST(OwnGraph, WhatAnotherMicrobatchComputedIsAnErrorOnceItIsConsumed) {
  const at::Tensor w1 = leaf({3}), w2 = leaf({3});
  at::Tensor cached;
  ModuleStage stage([&](const Tensors& in) {
    if (!cached.defined()) cached = w1 + w2;
    return Tensors{in[0] + cached};
  });
  for (const int m : {0, 1}) stage.forward(m, {at::ones({3}, at::kDouble)});
  stage.backward_input(0, {at::ones({3}, at::kDouble)});
  try {
    stage.backward_input(1, {at::ones({3}, at::kDouble)});
    FAIL() << "expected a ContractError";
  } catch (const ContractError& error) {
    EXPECT_NE(std::string(error.what()).find("AddBackward0"), std::string::npos) << error.what();
  }
}

// y = x w^T, with a backward that adds the gradient of w to a buffer of its own, as fused kernels
// do, and counts its calls.
struct FusedLinear : torch::autograd::Function<FusedLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                            const at::Tensor& buffer, int64_t calls) {
    ctx->save_for_backward({x, w});
    ctx->saved_data["buffer"] = buffer;
    ctx->saved_data["calls"] = calls;
    return x.mm(w.t());
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    ++*reinterpret_cast<int*>(ctx->saved_data["calls"].toInt());
    ctx->saved_data["buffer"].toTensor().add_(grads[0].t().mm(saved[0]));
    at::Tensor of_weight;
    if (ctx->needs_input_grad(1)) of_weight = grads[0].t().mm(saved[0]);
    return {grads[0].mm(saved[1]), of_weight, {}, {}};
  }
};

// Whether the function's inputs, weights or neither lead to more nodes, it runs once.
TEST(OwnGraph, ACustomFunctionRunsOncePerMicrobatch) {
  for (const bool with_input_grads : {false, true}) {
    for (const bool of_a_leaf : {false, true}) {
      for (const std::string& order : kOrders) {
        at::manual_seed(0);
        const Tensors w = {leaf({4, 4}), leaf({4, 4}), leaf({4, 4})};
        const at::Tensor buffer = at::zeros({4, 4}, at::kDouble);
        int calls = 0;
        const auto net = [&](const at::Tensor& x) {
          const at::Tensor h = x.mm(w[0]).tanh();
          const at::Tensor weight = of_a_leaf ? w[1] : w[1] * w[2];
          // w[1] is also the weight of a product.
          return FusedLinear::apply(h, weight, buffer, reinterpret_cast<int64_t>(&calls))
              .mm(w[1])
              .tanh()
              .mm(w[2]);
        };
        std::vector<Tensors> inputs, grads, input_grads(2), expected_input_grads;
        for (int m = 0; m < 2; ++m) {
          inputs.push_back({leaf({2, 4}).detach().requires_grad_(with_input_grads)});
          grads.push_back({at::randn({2, 4}, at::kDouble)});
          net(inputs.back()[0]).backward(grads.back()[0]);
        }
        const Tensors expected = take_grads(w);
        for (const Tensors& in : inputs) expected_input_grads.push_back(take_grads(in));
        const at::Tensor expected_buffer = buffer.clone();
        buffer.zero_();
        calls = 0;

        ModuleStage stage([&](const Tensors& in) { return Tensors{net(in[0])}; });
        for (const int m : {0, 1}) stage.forward(m, inputs[static_cast<size_t>(m)]);
        run(stage, order, grads, &input_grads);
        expect_close(take_grads(w), expected, order);
        for (const size_t m : {0, 1}) expect_close(input_grads[m], expected_input_grads[m], order);
        EXPECT_EQ(calls, 2) << order;
        EXPECT_TRUE(at::allclose(buffer, expected_buffer, 1e-12, 1e-12)) << order;
      }
    }
  }
}

// Records for which of its inputs gradients were asked for.
struct Recorded : torch::autograd::Function<Recorded> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                            int64_t asked) {
    ctx->save_for_backward({x, w});
    ctx->saved_data["asked"] = asked;
    return x * w;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const bool x = ctx->needs_input_grad(0), w = ctx->needs_input_grad(1);
    auto& asked = *reinterpret_cast<std::string*>(ctx->saved_data["asked"].toInt());
    asked += std::string(x ? "x" : "") + (w ? "w" : "") + " ";
    return {x ? grads[0] * saved[1] : at::Tensor(), w ? grads[0] * saved[0] : at::Tensor(), {}};
  }
};

TEST(OwnGraph, AMarkedFunctionLeavesItsWeightsToW) {
  for (const bool marked : {false, true}) {
    const at::Tensor w = leaf({3}), x = leaf({3}), grad = at::randn({3}, at::kDouble);
    std::string asked;
    ModuleStage stage([&](const Tensors& in) {
      const at::Tensor y = Recorded::apply(in[0], w, reinterpret_cast<int64_t>(&asked));
      if (marked) allow_split(y);
      return Tensors{y};
    });
    stage.forward(0, {x});
    expect_close(stage.backward_input(0, {grad}), {grad * w.detach()}, "x");
    EXPECT_EQ(w.grad().defined(), !marked);
    stage.backward_weight(0);
    expect_close({w.grad()}, {grad * x.detach()}, "w");
    EXPECT_EQ(asked, marked ? "x w " : "xw ");
  }
}

// LibTorch's node for a write into a view cannot run with some of its edges removed.
TEST(OwnGraph, WritesIntoViews) {
  for (const bool with_input_grads : {false, true}) {
    for (const std::string& order : kOrders) {
      at::manual_seed(0);
      const Tensors w = {leaf({4, 4}), leaf({2, 2}), leaf({4, 4})};
      const auto net = [&](const at::Tensor& x) {
        at::Tensor h = x.mm(w[0]);
        h.narrow(1, 0, 2).add_(w[1]).mul_(w[1]);
        return h.tanh().mm(w[2]);
      };
      std::vector<Tensors> inputs, grads, input_grads(2), expected_input_grads;
      for (int m = 0; m < 2; ++m) {
        inputs.push_back({leaf({2, 4}).detach().requires_grad_(with_input_grads)});
        grads.push_back({at::randn({2, 4}, at::kDouble)});
        net(inputs.back()[0]).backward(grads.back()[0]);
      }
      const Tensors expected = take_grads(w);
      for (const Tensors& in : inputs) expected_input_grads.push_back(take_grads(in));
      ModuleStage stage([&](const Tensors& in) { return Tensors{net(in[0])}; });
      for (const int m : {0, 1}) stage.forward(m, inputs[static_cast<size_t>(m)]);
      run(stage, order, grads, &input_grads);
      expect_close(take_grads(w), expected, order);
      for (const size_t m : {0, 1}) expect_close(input_grads[m], expected_input_grads[m], order);
    }
  }
}

class CountCalls final : public torch::autograd::FunctionPostHook {
 public:
  explicit CountCalls(int* calls) : calls_(calls) {}
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    ++*calls_;
    for (const at::Tensor& output : outputs) EXPECT_TRUE(output.defined());
    EXPECT_TRUE(inputs[0].defined());
    return outputs;
  }

 private:
  int* calls_;
};

TEST(OwnGraph, PostHooksOfNodesRunOnceWithAllGradients) {
  const at::Tensor w = leaf({3, 3}), x = leaf({2, 3});
  int calls = 0;
  ModuleStage stage([&](const Tensors& in) {
    const at::Tensor y = in[0].mm(w);
    y.grad_fn()->add_post_hook(std::make_unique<CountCalls>(&calls));
    return Tensors{y};
  });
  stage.forward(0, {x});
  stage.backward_input(0, {at::ones({2, 3}, at::kDouble)});
  stage.backward_weight(0);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace pipewright::autograd
