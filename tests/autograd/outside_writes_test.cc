// What a checkpointed part writes to tensors that outlive it is written once, although its forward
// runs twice. The part without a checkpoint is the judge.
#include "pipewright/autograd/outside_writes.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/modules/forward.h"

namespace pipewright::autograd {
namespace {

namespace nn = torch::nn;
using Tensors = std::vector<at::Tensor>;

struct Norms : nn::Module {
  explicit Norms(bool is_checkpointed) : checkpointed(is_checkpointed) {
    const c10::NoGradGuard no_grad;
    to(at::kDouble);
    int64_t i = 0;
    for (at::Tensor& weight : parameters())
      weight.copy_(at::sin(at::arange(weight.numel()).view_as(weight) + ++i));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto inner = [this](const Tensors& in) {
      at::Tensor y = batch->forward(linear->forward(in[0]));
      return Tensors{y.relu_()};
    };
    const auto outer = [this, inner](const Tensors& in) {
      at::Tensor y = part(inner, in)[0];
      y = instance->forward(y.unsqueeze(0)).squeeze(0);
      calls += 1;                                                   // a member
      history[calls.item<int64_t>() % 8].copy_(y.detach().mean());  // a view
      const c10::NoGradGuard no_grad;
      at::_foreach_add_({sums[0].detach(), sums[1].detach()}, 1);  // a list
      return Tensors{y};
    };
    return part(outer, {x})[0];
  }
  Tensors part(const std::function<Tensors(const Tensors&)>& function, const Tensors& in) const {
    return checkpointed ? checkpoint_function(function, in) : function(in);
  }
  const bool checkpointed;
  nn::Linear linear = register_module("linear", nn::Linear(4, 3));
  nn::BatchNorm1d batch = register_module("batch", nn::BatchNorm1d(3));
  nn::InstanceNorm1d instance = register_module(
      "instance", nn::InstanceNorm1d(nn::InstanceNorm1dOptions(5).track_running_stats(true)));
  at::Tensor calls = register_buffer("calls", at::zeros({}, at::kLong));
  at::Tensor history = register_buffer("history", at::zeros({8}, at::kDouble));
  Tensors sums = {register_buffer("sum0", at::zeros({2})), register_buffer("sum1", at::zeros({}))};
};

at::Tensor input_of(int64_t i) {
  return at::cos(at::arange(20, at::kDouble) * static_cast<double>(i + 1)).view({5, 4});
}

void expect_equal(const Norms& plain, const Norms& got) {
  for (const auto& named : plain.named_buffers())
    EXPECT_TRUE(at::equal(named.value(), got.named_buffers()[named.key()]))
        << named.key() << ": expected " << named.value() << ", got "
        << got.named_buffers()[named.key()];
  for (const auto& named : plain.named_parameters())
    EXPECT_TRUE(at::allclose(named.value().grad(), got.named_parameters()[named.key()].grad(),
                             1e-12, 1e-13))
        << named.key();
}

TEST(OutsideWrites, RunningStatisticsAreUpdatedOnce) {
  const auto plain = std::make_shared<Norms>(false), parts = std::make_shared<Norms>(true);
  for (const auto& module : {plain, parts}) {
    // All forwards before the backwards, as a pipeline has them.
    Tensors outputs;
    for (int64_t i = 0; i < 3; ++i) outputs.push_back(module->forward(input_of(i)));
    for (const at::Tensor& output : outputs) (output * output).sum().backward();
  }
  EXPECT_EQ(plain->calls.item<int64_t>(), 3);
  EXPECT_EQ(plain->batch->num_batches_tracked.item<int64_t>(), 3);
  expect_equal(*plain, *parts);
}

TEST(OutsideWrites, AlsoUnderASplitBackward) {
  const auto plain = std::make_shared<Norms>(false), parts = std::make_shared<Norms>(false);
  executor::ModuleStage stage([&](const Tensors& in) { return Tensors{parts->forward(in[0])}; });
  ASSERT_TRUE(stage.set_recompute(true));
  Tensors outputs;
  for (int i = 0; i < 2; ++i) {
    const at::Tensor x = input_of(i).requires_grad_();
    const at::Tensor y = plain->forward(x);
    y.backward(at::ones_like(y));
    outputs.push_back(stage.forward(i, {input_of(i).requires_grad_()})[0]);
  }
  for (int i = 0; i < 2; ++i) {
    stage.backward_input(i, {at::ones_like(outputs[static_cast<size_t>(i)])});
    stage.backward_weight(i);
  }
  expect_equal(*plain, *parts);
}

// Backward reads what the second forward has written; afterwards the caller's value is back.
TEST(OutsideWrites, AreUndoneAfterTheBackwardOfThePart) {
  const at::Tensor scale = at::ones({3});
  const at::Tensor x = at::tensor({1.0f, 2.0f, 3.0f}).requires_grad_();
  const at::Tensor y = checkpoint(
      [&](const Tensors& in) {
        scale.fill_(2);
        return Tensors{in[0] / scale};
      },
      Tensors{x})[0];
  scale.fill_(5);
  y.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({3}, 0.5)));
  EXPECT_TRUE(at::equal(scale, at::full({3}, 5.0)));
}

// Temporaries and outputs that are written in place are not outside.
TEST(OutsideWrites, TemporariesAreNotKept) {
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  WeakStorage temporary{c10::intrusive_ptr<c10::StorageImpl>()};
  bool was_freed = false;
  const auto part = [&](const Tensors& in) {
    {
      const at::Tensor h = (in[0] * 2).relu_();
      temporary = WeakStorage(
          c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(h.storage().unsafeGetStorageImpl()));
    }
    was_freed = temporary.expired();
    return Tensors{(in[0] * 3).mul_(2)};
  };
  OutsideWrites writes;
  const Tensors outputs = writes.record([&] { return part({at::ones({3})}); });
  EXPECT_TRUE(was_freed);
  const OutsideWrites::Values values = writes.values();
  outputs[0].zero_();
  values.restore();
  EXPECT_TRUE(at::equal(outputs[0], at::zeros({3})));
}

// What a wrapper of a module writes around its forward, such as gathered parameters, stays.
struct Wrapper final : modules::ForwardHook {
  modules::Tensors run(const nn::Module*, const Function& forward,
                       modules::Tensors inputs) override {
    calls += 1;
    return forward(inputs);
  }
  at::Tensor calls = at::zeros({});
};

TEST(OutsideWrites, OfWrappersStay) {
  const auto module = std::make_shared<Norms>(false);
  const auto wrapper = std::make_shared<Wrapper>();
  modules::register_forward_hook(*module, wrapper);
  const auto part = [&](const Tensors& in) { return Tensors{modules::forward(module, in[0])}; };
  checkpoint(part, Tensors{input_of(0)})[0].sum().backward();
  EXPECT_EQ(wrapper->calls.item<float>(), 2);
  EXPECT_EQ(module->calls.item<int64_t>(), 1);
}

}  // namespace
}  // namespace pipewright::autograd
