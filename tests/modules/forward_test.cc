// Calls of modules through their hooks.
#include "pipewright/modules/forward.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <tuple>

#include "pipewright/executor/module_stage.h"

namespace pipewright::modules {
namespace {

// Adds its name to a text before and after, and 1 to the first input.
class Adds final : public ForwardHook {
 public:
  Adds(std::string name, std::string& text) : name_(std::move(name)), text_(text) {}
  Tensors run(const torch::nn::Module* /*module*/, const Function& forward,
              Tensors inputs) override {
    text_ += name_ + "(";
    inputs[0] = inputs[0] + 1;
    Tensors outputs = forward(inputs);
    text_ += ")" + name_;
    return outputs;
  }

 private:
  const std::string name_;
  std::string& text_;
};

struct Twice : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return 2 * x; }
};
struct Pair : torch::nn::Module {
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& y) {
    return {x, y};
  }
};

double value_of(const at::Tensor& tensor) { return tensor.item<double>(); }

TEST(Forward, RunsHooksInReverseOrderOfRegistration) {
  std::string text;
  const auto module = std::make_shared<Twice>();
  const at::Tensor x = at::ones({}, at::kDouble);
  EXPECT_EQ(value_of(forward(module, x)), 2);  // a plain call
  const auto inner = std::make_shared<Adds>("a", text);
  auto outer = std::make_shared<Adds>("b", text);
  register_forward_hook(*module, inner);
  register_forward_hook(*module, outer);
  EXPECT_EQ(value_of(forward(module, x)), 6);
  EXPECT_EQ(text, "b(a()a)b");
  EXPECT_EQ(value_of(forward(std::make_shared<Twice>(), x)), 2) << "another module";
  outer.reset();
  text.clear();
  EXPECT_EQ(value_of(forward(module, x)), 4);
  EXPECT_EQ(text, "a()a");
}

// A module at the address of one that no longer exists has none of its hooks.
TEST(Forward, HooksEndWithTheModule) {
  std::string text;
  std::vector<std::shared_ptr<Adds>> hooks;
  for (int i = 0; i < 200; ++i) {
    const auto module = std::make_shared<Twice>();
    EXPECT_EQ(value_of(forward(module, at::ones({}, at::kDouble))), 2) << i;
    hooks.push_back(std::make_shared<Adds>("a", text));
    register_forward_hook(*module, hooks.back());
  }
  EXPECT_EQ(text, "");
}

TEST(Forward, PassesSeveralAndUndefinedTensors) {
  std::string text;
  const auto module = std::make_shared<Pair>();
  const auto hook = std::make_shared<Adds>("a", text);
  register_forward_hook(*module, hook);
  const auto [x, y] = forward(module, at::ones({}, at::kDouble), at::Tensor());
  EXPECT_EQ(value_of(x), 2);
  EXPECT_FALSE(y.defined());
  const auto doubled = [](const Tensors& in) { return Tensors{in[0] * 2}; };
  EXPECT_EQ(value_of(call(*module, doubled, {at::ones({}, at::kDouble)})[0]), 4);
}

TEST(Forward, RunsTheHooksOfASequentialAndItsChildren) {
  std::string text;
  const auto first = std::make_shared<Twice>(), second = std::make_shared<Twice>();
  torch::nn::Sequential sequential(first, second);
  const auto whole = std::make_shared<Adds>("s", text), part = std::make_shared<Adds>("a", text);
  register_forward_hook(*sequential, whole);
  register_forward_hook(*second, part);
  EXPECT_EQ(value_of(forward(sequential, at::ones({}, at::kDouble))), 10);
  EXPECT_EQ(text, "s(a()a)s");
}

struct Product : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) { return x * y; }
};

TEST(Forward, PassesAllInputsToTheFirstChildOfASequential) {
  const torch::nn::Sequential sequential(std::make_shared<Product>(), std::make_shared<Twice>());
  const at::Tensor x = at::full({}, 3.0, at::kDouble), y = at::full({}, 5.0, at::kDouble);
  EXPECT_EQ(value_of(forward(sequential, x, y)), 30);
}

// LibTorch's Sequential cannot contain another one, but a class derived from it.
struct Layers : torch::nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  at::Tensor forward(const at::Tensor& x) { return forward_children(*this, x); }
};

TEST(Forward, RunsTheHooksInsideANestedSequential) {
  std::string text;
  const auto first = std::make_shared<Twice>(), second = std::make_shared<Twice>();
  const auto inner = std::make_shared<Layers>(first, second);
  torch::nn::Sequential outer(inner, std::make_shared<Twice>());
  const auto whole = std::make_shared<Adds>("s", text), part = std::make_shared<Adds>("a", text);
  register_forward_hook(*inner, whole);
  register_forward_hook(*second, part);
  EXPECT_EQ(value_of(forward(outer, at::ones({}, at::kDouble))), 20);
  EXPECT_EQ(text, "s(a()a)s");
  EXPECT_EQ(value_of(forward(inner, at::ones({}, at::kDouble))), 10);
}

TEST(Forward, RunsTheHooksOfAnAnyModule) {
  std::string text;
  const auto module = std::make_shared<Twice>();
  const auto hook = std::make_shared<Adds>("a", text);
  register_forward_hook(*module, hook);
  const torch::nn::AnyModule any(module);
  EXPECT_EQ(value_of(forward(any, at::ones({}, at::kDouble))), 4);
  EXPECT_EQ(text, "a()a");
  // Of a child of a Sequential.
  torch::nn::Sequential layers(std::make_shared<Twice>(), module);
  EXPECT_EQ(value_of(forward(*std::next(layers->begin()), at::ones({}, at::kDouble))), 4);
}

TEST(Forward, IsHowAStageCallsItsModule) {
  std::string text;
  const auto module = std::make_shared<Twice>();
  const auto hook = std::make_shared<Adds>("a", text);
  register_forward_hook(*module, hook);
  const auto stage = executor::make_stage(module);
  EXPECT_EQ(value_of(stage->forward(0, {at::ones({}, at::kDouble)})[0]), 4);
}

}  // namespace
}  // namespace pipewright::modules
