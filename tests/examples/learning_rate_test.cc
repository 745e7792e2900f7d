// Warm-up and cosine of train_gpt's learning rate.
#include "examples/learning_rate.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

namespace pipewright::examples {
namespace {

TEST(LearningRate, GrowsAndFalls) {
  for (const int64_t step : {0, 5, 9}) EXPECT_EQ(learning_rate_factor({}, step, 10), 1);
  const LearningRatePlan warmup{.warmup = 4};
  EXPECT_EQ(learning_rate_factor(warmup, 0, 10), 0.25);
  EXPECT_EQ(learning_rate_factor(warmup, 3, 10), 1);
  EXPECT_EQ(learning_rate_factor(warmup, 4, 10), 1);
  EXPECT_EQ(learning_rate_factor(warmup, 9, 10), 1);
  const LearningRatePlan both{.warmup = 4, .cosine = true};
  EXPECT_EQ(learning_rate_factor(both, 1, 15), 0.5);
  EXPECT_EQ(learning_rate_factor(both, 4, 15), 1);
  EXPECT_DOUBLE_EQ(learning_rate_factor(both, 9, 15), 0.55);  // halfway
  EXPECT_DOUBLE_EQ(learning_rate_factor(both, 14, 15), 0.1);
  EXPECT_EQ(learning_rate_factor({.cosine = true}, 0, 1), 1);
}

TEST(LearningRate, IsScaledForOneStepOnly) {
  const at::Tensor weight = at::zeros({2}, at::kDouble).requires_grad_();
  weight.mutable_grad() = at::ones({2}, at::kDouble);
  torch::optim::SGD optimizer({weight}, torch::optim::SGDOptions(0.3));
  scaled_step(optimizer, 0.7);
  EXPECT_TRUE(at::allclose(weight, at::full({2}, -0.3 * 0.7, at::kDouble), 1e-15, 0));
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.3);
}

}  // namespace
}  // namespace pipewright::examples
