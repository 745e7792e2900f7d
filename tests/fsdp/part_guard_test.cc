// Shards that are read outside their unit (modules/part_guard.h), and what may be done with them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/fsdp/fully_shard.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::fsdp {
namespace {

using tests::expect_errors;
using tests::here;
using tests::on_ranks;
using tests::Rank;

std::shared_ptr<torch::nn::LinearImpl> make_linear() {
  auto linear = std::make_shared<torch::nn::LinearImpl>(4, 6);
  linear->to(here());
  return linear;
}

// Read outside its unit, a shard is an error that names the parameter, with and without grad mode.
// Several of these would compute wrong values silently: see what they do without the guard.
TEST(PartGuard, AShardThatIsReadOutsideItsUnit) {
  struct Model : torch::nn::Module {
    Model()
        : linear(register_module("linear", torch::nn::Linear(4, 6))),
          rows(register_module("rows", torch::nn::Embedding(8, 4))),
          norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})))),
          convolution(register_module("convolution", torch::nn::Conv1d(4, 4, 1))),
          scale(register_parameter("scale", at::ones({2}))) {}
    torch::nn::Linear linear;
    torch::nn::Embedding rows;
    torch::nn::LayerNorm norm;
    torch::nn::Conv1d convolution;
    at::Tensor scale;
  };
  using Read = std::function<void(Model&, const at::Tensor&)>;
  const std::vector<std::pair<std::string, Read>> reads = {
      {"linear.bias", [](Model& m, const at::Tensor& x) { m.linear(x); }},
      {"linear.weight", [](Model& m, const at::Tensor& x) { at::mm(x, m.linear->weight.t()); }},
      {"rows.weight",
       [](Model& m, const at::Tensor&) {
         m.rows(at::tensor({0, 1, 2}).to(here()));
       }},
      {"norm.weight", [](Model& m, const at::Tensor& x) { m.norm(x); }},
      {"convolution.weight",
       [](Model& m, const at::Tensor& x) {
         m.convolution(x.reshape({1, 4, 2}));
       }},
      {"scale", [](Model& m, const at::Tensor& x) { (void)(x.narrow(1, 0, 2) * m.scale); }},
  };
  for (const auto& [name, read] : reads) {
    for (const bool with_grad : {true, false}) {
      expect_errors(2, "reads parameter `" + name + "` of the root, of which this rank has a shard",
                    [&, read = read](Rank& self) {
                      const auto model = std::make_shared<Model>();
                      model->to(here());
                      const auto unit = fully_shard(*model, self.group);
                      const c10::AutoGradMode mode(with_grad);
                      read(*model, at::ones({2, 4}, here()));
                    });
    }
  }
}

// As in a model that is cast between steps.
TEST(PartGuard, ACastShardThatIsReadOutsideItsUnit) {
  const std::string expected = "reads parameter `bias` of the root, of which this rank has a shard";
  for (const bool is_sharded_again : {false, true}) {
    expect_errors(2, expected, [&](Rank& self) {
      const auto linear = make_linear();
      const auto unit = fully_shard(*linear, self.group);
      linear->to(at::kDouble);
      const at::Tensor x = at::ones({1, 4}, here(at::kDouble));
      if (is_sharded_again) (void)forward(linear, x);
      unit->reshard();
      linear->forward(x);
    });
  }
  expect_errors(2, expected, [](Rank& self) {
    const auto linear = make_linear();
    const auto unit = fully_shard(*linear, self.group);
    (void)at::add(linear->bias.to(at::kDouble), at::ones({2, 6}, here(at::kDouble)));
  });
}

// What users do with shards between steps.
TEST(PartGuard, ShardsWorkOutsideTheirUnit) {
  on_ranks(2, [](Rank& self) {
    const auto linear = make_linear();
    const at::Tensor whole = at::arange(24, here(at::kFloat)).view({6, 4});
    linear->weight.set_data(whole.clone());
    const auto unit = fully_shard(*linear, self.group);
    const at::Tensor mine = tests::part_of(whole, self.rank, 2);
    EXPECT_TRUE(at::equal(linear->weight, mine));
    EXPECT_TRUE(at::equal(linear->weight.detach().view({-1}).clone(), mine.view({-1})));
    EXPECT_DOUBLE_EQ(linear->weight.norm().item<float>(), mine.norm().item<float>());
    EXPECT_EQ(at::cat({linear->weight.detach(), at::zeros({1, 4}, here())}).size(0), 4);
    const c10::NoGradGuard no_grad;
    linear->weight.copy_(at::ones({3, 4}, here()));
    EXPECT_EQ(forward(linear, at::ones({1, 4}, here())).size(1), 6);
    EXPECT_TRUE(at::equal(linear->weight, at::ones({3, 4}, here())));
    // Optimizers that update all parameters at once, whose lists have tensors of many shapes.
    const std::vector<at::Tensor> shards = {linear->weight, linear->bias};
    std::vector<at::Tensor> ones, averages, square_averages;
    for (const at::Tensor& shard : shards) {
      ones.push_back(at::ones_like(shard.detach()));
      averages.push_back(at::zeros_like(shard.detach()));
      square_averages.push_back(at::zeros_like(shard.detach()));
    }
    at::_foreach_add_(shards, ones, 2);
    EXPECT_TRUE(at::equal(linear->weight, at::full({3, 4}, 3.0, here())));
    const std::vector<at::Tensor> steps = {at::ones({}, here()), at::ones({}, here())};
    at::_fused_adamw_(shards, ones, averages, square_averages, {}, steps, /*lr=*/0.5, 0.9, 0.999,
                      /*weight_decay=*/0, 1e-8, /*amsgrad=*/false, /*maximize=*/false);
    EXPECT_TRUE(at::allclose(linear->weight, at::full({3, 4}, 2.5, here())));
    at::_fused_sgd_(shards, ones, {}, /*weight_decay=*/0, /*momentum=*/0, /*lr=*/0.5,
                    /*dampening=*/0, /*nesterov=*/false, /*maximize=*/false,
                    /*is_first_step=*/true);
    EXPECT_TRUE(at::allclose(linear->weight, at::full({3, 4}, 2.0, here())));
  });
}

TEST(PartGuard, AModuleWhoseUnitNoLongerExists) {
  expect_errors(2,
                "parameter `weight`, Float [3, 4] on {here}, is a shard of a unit that no longer",
                [](Rank& self) {
                  const auto linear = make_linear();
                  (void)fully_shard(*linear, self.group).get();
                  (void)fully_shard(*linear, self.group);
                });
  expect_errors(2, "reads parameter `bias`", [](Rank& self) {
    const auto linear = make_linear();
    (void)fully_shard(*linear, self.group).get();
    forward(linear, at::ones({1, 4}, here()));
  });
}

}  // namespace
}  // namespace pipewright::fsdp
