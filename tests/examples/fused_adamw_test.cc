// The optimizer of train_gpt against torch's, which it replaces.
#include "examples/fused_adamw.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/meter/calls.h"

namespace pipewright::examples {
namespace {

using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;
using torch::optim::OptimizerParamGroup;
using Tensors = std::vector<at::Tensor>;

// Sizes below, at and above what one vector holds, and none.
Tensors make_parameters(at::ScalarType type) {
  Tensors parameters;
  const std::vector<std::vector<int64_t>> shapes = {{37, 11}, {5}, {}, {0, 4}, {64}, {3}};
  for (const std::vector<int64_t>& shape : shapes)
    parameters.push_back((at::arange(c10::multiply_integers(shape), at::kDouble).view(shape) * 0.7)
                             .sin()
                             .to(type)
                             .requires_grad_());
  return parameters;
}

template <typename Optimizer>
Optimizer make_optimizer(const Tensors& parameters) {
  const auto half = parameters.begin() + 3;
  return Optimizer(std::vector<OptimizerParamGroup>{
      OptimizerParamGroup({parameters.begin(), half},
                          std::make_unique<AdamWOptions>(AdamWOptions(0.1).weight_decay(0.3))),
      OptimizerParamGroup({half, parameters.end()},
                          std::make_unique<AdamWOptions>(
                              AdamWOptions(0.02).betas({0.8, 0.95}).eps(1e-3).weight_decay(0)))});
}

// The last parameter has a gradient in some steps only.
void set_gradients(const Tensors& parameters, int step) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor& gradient = parameters[i].mutable_grad();
    if (i + 1 == parameters.size() && step % 2 == 0) {
      gradient = at::Tensor();
      continue;
    }
    gradient = (parameters[i].detach() * (3 + step) + static_cast<double>(i)).cos();
  }
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected) {
  const double tolerance = expected.scalar_type() == at::kDouble ? 1e-13 : 1e-6;
  EXPECT_TRUE(at::allclose(actual, expected, tolerance, tolerance)) << actual << expected;
}

class Fused : public testing::TestWithParam<at::ScalarType> {};

TEST_P(Fused, StepsAreThoseOfTorch) {
  const Tensors own = make_parameters(GetParam()), torchs = make_parameters(GetParam());
  auto fused = make_optimizer<FusedAdamW>(own);
  auto plain = make_optimizer<AdamW>(torchs);
  for (int step = 1; step <= 6; ++step) {
    set_gradients(own, step);
    set_gradients(torchs, step);
    fused.step();
    plain.step();
    for (size_t i = 0; i < own.size(); ++i) {
      expect_close(own[i].detach(), torchs[i].detach());
      const auto state_of = [](auto& optimizer, const at::Tensor& parameter) {
        const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
        return found == optimizer.state().end()
                   ? nullptr
                   : static_cast<const AdamWParamState*>(found->second.get());
      };
      const auto* state = state_of(fused, own[i]);
      const auto* expected = state_of(plain, torchs[i]);
      ASSERT_NE(state, nullptr);
      EXPECT_EQ(state->step(), expected->step());
      expect_close(state->exp_avg(), expected->exp_avg());
      expect_close(state->exp_avg_sq(), expected->exp_avg_sq());
    }
  }
  EXPECT_GT((own[0] - make_parameters(GetParam())[0]).abs().max().item<double>(), 0.1);
}

INSTANTIATE_TEST_SUITE_P(Types, Fused, testing::Values(at::kFloat, at::kDouble));

TEST(Fused, OneOperationPerGroup) {
  const Tensors parameters = make_parameters(at::kFloat);
  auto optimizer = make_optimizer<FusedAdamW>(parameters);
  set_gradients(parameters, 1);
  tests::Calls calls = tests::calls_of([&] { optimizer.step(); });
  EXPECT_EQ(calls["aten::_fused_adamw_"], 2);
  EXPECT_EQ(calls["aten::addcdiv_"], 0);
}

// What cannot be fused is left to torch.
TEST(Fused, TakesWhatTorchTakes) {
  const auto train = [](auto optimizer, const at::Tensor& parameter) {
    for (int step = 1; step <= 3; ++step) {
      set_gradients({parameter, parameter}, 2 * step + 1);
      optimizer.step();
    }
    return parameter.detach();
  };
  const auto transposed = [] {
    return at::arange(6, at::kDouble).view({2, 3}).t().detach().requires_grad_();
  };
  const at::Tensor one = transposed(), other = transposed();
  EXPECT_TRUE(at::equal(train(FusedAdamW(Tensors{one}), one), train(AdamW(Tensors{other}), other)));
  const auto amsgrad = AdamWOptions(0.1).amsgrad(true);
  const at::Tensor third = at::ones({3}).requires_grad_(), fourth = at::ones({3}).requires_grad_();
  EXPECT_TRUE(at::equal(train(FusedAdamW(Tensors{third}, amsgrad), third),
                        train(AdamW(Tensors{fourth}, amsgrad), fourth)));
}

}  // namespace
}  // namespace pipewright::examples
