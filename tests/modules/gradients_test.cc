// Clipping and scaling of gradients that are distributed over ranks.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "pipewright/comms/mesh.h"
#include "pipewright/ir/errors.h"
#include "pipewright/modules/clip_grad_norm.h"
#include "pipewright/modules/grad_scaler.h"
#include "pipewright/modules/tensors.h"
#include "tests/support/training/named_wait.h"
#include "tests/support/training/on_ranks.h"

namespace pipewright::modules {
namespace {

using tests::on_ranks;
using tests::Rank;

at::Tensor with_grad(const at::Tensor& grad) {
  at::Tensor parameter = at::zeros_like(grad).requires_grad_();
  parameter.mutable_grad() = grad.clone();
  return parameter;
}

// A pipeline of three stages times two data-parallel ranks: one stage is sharded over them, one is
// replicated, and one has no parameters.
TEST(ClipGradNorm, OverPipelineStagesAndAPartOfTheMesh) {
  for (const double norm_type : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    on_ranks(6, [&](Rank& self) {
      comms::Mesh mesh(*self.world, {{"dp", 2}, {"pp", 3}});
      const int stage = mesh.coordinate("pp"), copy = mesh.coordinate("dp");
      const comms::BackendPtr all = mesh.group({"pp", "dp"});
      const at::Tensor sharded = at::arange(1, 9, at::kDouble);
      const at::Tensor replicated = -at::arange(3, 12, at::kDouble);
      const at::Tensor mine = stage == 0 ? sharded.chunk(2)[static_cast<size_t>(copy)] : replicated;
      const at::Tensor parameter = with_grad(mine);
      std::vector<GradsToClip> grads;
      if (stage == 0) grads.push_back({{parameter}});
      if (stage == 1) grads.push_back({{parameter}, mesh.size("dp")});
      const at::Tensor norm = clip_grad_norm_(grads, *all, 0.5, norm_type);
      const double expected = at::cat({sharded, replicated}).norm(norm_type).item<double>();
      EXPECT_NEAR(norm.item<double>(), expected, 1e-9);
      EXPECT_GT(expected, 0.5);
      if (stage < 2) {
        EXPECT_TRUE(at::allclose(parameter.grad(), mine * (0.5 / (expected + 1e-6))));
      }
    });
  }
}

// All stages replicated: the dimension of the replicas is left out.
TEST(ClipGradNorm, OverStagesOnly) {
  on_ranks(4, [](Rank& self) {
    comms::Mesh mesh(*self.world, {{"dp", 2}, {"pp", 2}});
    const at::Tensor parameter = with_grad(at::full({4}, 1.0 + mesh.coordinate("pp")));
    const at::Tensor norm = clip_grad_norm_({parameter}, *mesh.group({"pp"}), 100);
    EXPECT_NEAR(norm.item<double>(), std::sqrt(4.0 + 16.0), 1e-6);
    EXPECT_TRUE(at::equal(parameter.grad(), at::full({4}, 1.0 + mesh.coordinate("pp"))));
  });
}

// Parameters without a gradient or without elements among them. Squares of the fp16 gradient would
// overflow.
TEST(ClipGradNorm, OfGradientsOfSeveralDtypes) {
  on_ranks(2, [](Rank& self) {
    const std::vector<at::Tensor> parameters = {
        with_grad(at::full({2}, 300, at::kHalf)),  with_grad(at::full({3}, 100, at::kDouble)),
        with_grad(at::full({4}, 200, at::kFloat)), with_grad(at::full({1}, 400, at::kFloat)),
        with_grad(at::empty({0}, at::kFloat)),     at::ones({2}).requires_grad_()};
    const double expected = std::sqrt(2 * (2 * 9e4 + 3 * 1e4 + 4 * 4e4 + 16e4));
    const at::Tensor norm = total_grad_norm({{parameters}}, *self.group);
    EXPECT_NEAR(norm.item<double>(), expected, 1e-3);
    EXPECT_TRUE(at::equal(parameters[0].grad(), at::full({2}, 300, at::kHalf)));
    EXPECT_EQ(clip_grad_norm_(parameters, *self.group, expected / 4).item<double>(),
              norm.item<double>());
    const std::vector<double> sizes = {75, 25, 50, 100};
    for (size_t i = 0; i < sizes.size(); ++i) {
      const at::Tensor& grad = parameters[i].grad();
      EXPECT_EQ(grad.scalar_type(), parameters[i].scalar_type());
      EXPECT_TRUE(at::allclose(grad, at::full_like(grad, sizes[i]), 1e-6)) << grad;
    }
    EXPECT_FALSE(parameters[5].grad().defined());
    EXPECT_THROW(total_grad_norm({{parameters}}, *self.group, 0), std::invalid_argument);
  });
}

// A parameter that is registered under two names is in module->parameters() twice. Every function
// that takes a list of parameters does the same with such a list as with one without repetitions.
struct Tied : torch::nn::Module {
  explicit Tied(bool has_two_names) {
    weight = register_parameter("weight", at::zeros({3}, at::kDouble));
    other = register_parameter("other", at::zeros({2}, at::kDouble));
    if (has_two_names) register_parameter("again", weight);
    weight.mutable_grad() = at::tensor({3.0, 4.0, 12.0}, at::kDouble);
    other.mutable_grad() = at::tensor({84.0, -1.0}, at::kDouble);
  }
  at::Tensor weight, other;
};

using ListFunction = std::function<double(const std::vector<at::Tensor>&, Rank&)>;
const std::vector<std::pair<const char*, ListFunction>> kListFunctions = {
    {"clip_grad_norm_",
     [](const auto& list, Rank& self) {
       return clip_grad_norm_(list, *self.group, 10).template item<double>();
     }},
    {"clip_grad_norm_, norm_type 1",
     [](const auto& list, Rank& self) {
       return clip_grad_norm_(list, *self.group, 10, 1).template item<double>();
     }},
    {"clip_grad_norm_ of parts",
     [](const auto& list, Rank& self) {
       std::vector<GradsToClip> parts;
       for (const at::Tensor& each : list) parts.push_back({{each}});
       return clip_grad_norm_(parts, *self.group, 10).template item<double>();
     }},
    {"grads_to_clip",
     [](const auto& list, Rank& self) {
       return clip_grad_norm_(grads_to_clip(list), *self.group, 10).template item<double>();
     }},
    {"total_grad_norm",
     [](const auto& list, Rank& self) {
       return total_grad_norm({{list}}, *self.group).template item<double>();
     }},
    {"GradScaler::unscale_",
     [](const auto& list, Rank& self) {
       GradScaler scaler(self.group, {.init_scale = 8});
       scaler.unscale_(list);
       return 0.0;
     }},
    {"GradScaler::step",
     [](const auto& list, Rank& self) {
       GradScaler scaler(self.group, {.init_scale = 8});
       torch::optim::SGD optimizer(list, torch::optim::SGDOptions(0));
       EXPECT_TRUE(scaler.step(optimizer));
       return 0.0;
     }},
};

TEST(ListsOfParameters, CountEachTensorOnce) {
  on_ranks(1, [](Rank& self) {
    for (const auto& [name, function] : kListFunctions) {
      const auto plain = std::make_shared<Tied>(false), twice = std::make_shared<Tied>(true);
      ASSERT_EQ(twice->parameters().size(), 3u);
      EXPECT_EQ(function(plain->parameters(), self), function(twice->parameters(), self)) << name;
      EXPECT_TRUE(at::equal(plain->weight.grad(), twice->weight.grad())) << name;
      EXPECT_TRUE(at::equal(plain->other.grad(), twice->other.grad())) << name;
      // Two parameters with one gradient.
      const auto alias = std::make_shared<Tied>(false);
      const at::Tensor view = alias->weight.detach().view({3, 1}).requires_grad_();
      view.mutable_grad() = alias->weight.grad().view({3, 1});
      std::vector<at::Tensor> list = alias->parameters();
      list.push_back(view);
      function(list, self);
      EXPECT_TRUE(at::equal(plain->weight.grad(), alias->weight.grad())) << name;
    }
    const auto twice = std::make_shared<Tied>(true);
    EXPECT_EQ(total_grad_norm({{twice->parameters()}}, *self.group).item<double>(),
              std::sqrt(13.0 * 13 + 84 * 84 + 1));
    EXPECT_EQ(distinct(twice->parameters()).size(), 2u);
  });
}

// Parts of one buffer, as fully_shard has them, are different gradients.
TEST(ListsOfParameters, DoNotConfusePartsOfABuffer) {
  on_ranks(1, [](Rank& self) {
    const at::Tensor buffer = at::full({4}, 8.0);
    std::vector<at::Tensor> list;
    for (const at::Tensor& part : buffer.chunk(2)) {
      list.push_back(at::zeros({2}).requires_grad_());
      list.back().mutable_grad() = part;
    }
    GradScaler(self.group, {.init_scale = 8}).unscale_(list);
    EXPECT_TRUE(at::equal(buffer, at::ones({4})));
    EXPECT_NEAR(total_grad_norm({{list}}, *self.group).item<double>(), 2, 1e-6);
  });
}

TEST(ClipGradNorm, ItsWaitIsNamed) {
  tests::expect_named_wait("allreduce", [](const comms::BackendPtr& group) {
    clip_grad_norm_({with_grad(at::ones({4}))}, *group, 1);
  });
}

TEST(GradScaler, ItsWaitIsNamed) {
  tests::expect_named_wait("allreduce", [](const comms::BackendPtr& group) {
    GradScaler(group).unscale_({with_grad(at::ones({4}))});
  });
}

// What the executor reports is the loss, and gradients are those of the scaled loss.
TEST(GradScaler, ScalesTheGradientOnly) {
  on_ranks(1, [](Rank& self) {
    GradScaler scaler(self.group, {.init_scale = 3});
    const at::Tensor plain = at::arange(1, 4, at::kFloat).requires_grad_();
    const at::Tensor scaled = plain.detach().clone().requires_grad_();
    scaler.scale(plain.square().sum()).backward();
    const at::Tensor loss = scaler.scale_gradient(scaled.square().sum());
    EXPECT_EQ(loss.item<float>(), 14);
    loss.backward();
    EXPECT_TRUE(at::equal(scaled.grad(), plain.grad()));
    EXPECT_TRUE(at::equal(plain.grad(), 6 * plain.detach()));
    const at::NoGradGuard evaluation;
    EXPECT_EQ(scaler.scale_gradient(at::full({}, 2.0f)).item<float>(), 2);
  });
}

// test_gradient_scaler: an overflow in one shard of one rank.
TEST(GradScaler, test_gradient_scaler) {
  for (const float bad :
       {0.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    on_ranks(2, [bad](Rank& self) {
      GradScaler scaler(self.group, {.init_scale = 2, .growth_interval = 2});
      EXPECT_EQ(scaler.scale(at::ones({})).item<float>(), 2);
      const at::Tensor weight = with_grad(at::full({4, 4}, 3.0f));
      torch::optim::Adam optimizer({weight}, torch::optim::AdamOptions(1e-2));
      if (bad != 0 && self.rank == 1) weight.grad()[0][0].fill_(bad);
      self.log->clear();
      scaler.unscale_({weight});
      EXPECT_EQ(self.log->count("allreduce"), 1);
      EXPECT_EQ(scaler.found_inf(), bad != 0);
      EXPECT_EQ(weight.grad()[1][1].item<float>(), 1.5);
      EXPECT_THROW(scaler.unscale_({weight}), ContractError);
      EXPECT_EQ(scaler.step(optimizer), bad == 0);
      EXPECT_EQ(optimizer.state().empty(), bad != 0);
      EXPECT_EQ(at::equal(weight, at::zeros({4, 4})), bad != 0);
      scaler.update();
      EXPECT_EQ(scaler.get_scale(), bad != 0 ? 1 : 2);
      // step() without unscale_(), and growth after two good steps in a row.
      for (int step = 0; step < 2; ++step) {
        weight.mutable_grad().fill_(1);
        EXPECT_TRUE(scaler.step(optimizer));
        scaler.update();
      }
      EXPECT_EQ(scaler.get_scale(), bad != 0 ? 2 : 4);
      EXPECT_THROW(scaler.update(), ContractError);
    });
  }
  on_ranks(1, [](Rank& self) {
    EXPECT_THROW(GradScaler(self.group, {.backoff_factor = 2}), std::invalid_argument);
  });
}

}  // namespace
}  // namespace pipewright::modules
