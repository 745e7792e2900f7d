// Parameters that a plan does not name: right where all ranks compute the same, an error where a
// rank has a part of an activation, and with sequence_parallel() the gradients of the whole model.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/modules/forward.h"
#include "pipewright/tp/communication.h"
#include "pipewright/tp/parallelize.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/tp/whole_model.h"

namespace pipewright::tp {
namespace {

namespace nn = torch::nn;
using comms::Mesh;
using tests::on_ranks;
using tests::Rank;

constexpr int64_t kBatch = 3, kSequence = 6, kDim = 4, kHidden = 8;
const layout::TensorPlacement kAlongSequence = layout::TensorPlacement::shard(1);

struct Scale : nn::Module {
  explicit Scale(int64_t size) { weight = register_parameter("weight", at::ones({size})); }
  at::Tensor forward(const at::Tensor& x) { return x * weight; }
  at::Tensor weight;
};

struct Inner : nn::Module {
  explicit Inner(bool scales) : has_scale(scales) {}
  at::Tensor forward(const at::Tensor& x) {
    return modules::forward(up, has_scale ? modules::forward(before, x) : x);
  }
  const bool has_scale;
  std::shared_ptr<Scale> before = register_module("before", std::make_shared<Scale>(kDim));
  nn::Linear up = register_module("up", nn::Linear(kDim, kHidden));
};

using Names = std::set<std::string>;  // of the parameters that a model uses besides its layers

struct Model : nn::Module {
  explicit Model(Names used) : uses(std::move(used)) {
    inner = register_module("inner", std::make_shared<Inner>(uses.contains("inner.before.weight")));
    raw = register_parameter("raw", at::ones({kDim}));
    const torch::NoGradGuard no_grad;
    to(at::kDouble);
    uint64_t seed = 7;
    for (at::Tensor& weight : parameters())
      weight.copy_(tests::random_input(weight.sizes(), ++seed));
  }

  at::Tensor forward(const at::Tensor& input) {
    using modules::forward;
    at::Tensor x = at::gelu(forward(inner, forward(norm1, input)));
    if (uses.contains("heads.weight")) x = forward(heads, x);
    const auto adapted = [this](const std::vector<at::Tensor>& in) {
      return std::vector{forward(between, forward(down1, in[0]))};
    };
    const auto between_alone = [this](const std::vector<at::Tensor>& in) {
      return std::vector{forward(between, in[0])};
    };
    if (uses.contains("part with between.weight"))
      x = autograd::checkpoint(adapted, {x})[0];
    else
      x = forward(down1, x);
    if (uses.contains("between.weight")) x = forward(between, x);
    if (uses.contains("part of between.weight")) x = autograd::checkpoint(between_alone, {x})[0];
    if (uses.contains("raw")) x = x * (raw * 2);
    x = input + forward(down2, at::gelu(forward(up2, forward(norm2, x))));
    if (uses.contains("tail.weight")) x = forward(tail, x);
    if (gathers) x = gather_from(x, 1, kSequence, group);
    return uses.contains("head.weight") ? forward(head, x) : x;
  }

  const Names uses;
  bool gathers = false;
  comms::BackendPtr group;
  nn::LayerNorm norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({kDim})));
  nn::LayerNorm norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({kDim})));
  std::shared_ptr<Inner> inner;
  std::shared_ptr<Scale> heads = register_module("heads", std::make_shared<Scale>(1));
  std::shared_ptr<Scale> between = register_module("between", std::make_shared<Scale>(kDim));
  std::shared_ptr<Scale> tail = register_module("tail", std::make_shared<Scale>(kDim));
  std::shared_ptr<Scale> head = register_module("head", std::make_shared<Scale>(kDim));
  nn::Linear down1 = register_module("down1", nn::Linear(kHidden, kDim));
  nn::Linear up2 = register_module("up2", nn::Linear(kDim, kHidden));
  nn::Linear down2 = register_module("down2", nn::Linear(kHidden, kDim));
  at::Tensor raw;
};

const Plan kAlongFeatures = {
    {"inner.up", colwise_parallel()}, {"up2", colwise_parallel()}, {"down*", rowwise_parallel()}};
const Plan kSequencePlan = {{"norm*", sequence_parallel()},
                            {"inner", prepare_input({.input = kAlongSequence})},
                            {"inner.up", colwise_parallel({.input_is_prepared = true})},
                            {"up2", colwise_parallel({.input = kAlongSequence})},
                            {"down*", rowwise_parallel({.output = kAlongSequence})}};

// Trains two steps beside the whole model.
void expect_parity(const Names& uses, const Plan& plan, bool is_along_sequence) {
  on_ranks(2, [&](Rank& self) {
    Mesh mesh(*self.world, {{"tp", 2}});
    const auto plain = std::make_shared<Model>(uses), module = std::make_shared<Model>(uses);
    const auto split = parallelize(*module, plan, mesh, "tp");
    module->group = mesh.group({"tp"});
    module->gathers = is_along_sequence && uses.contains("head.weight");
    for (int step = 0; step < 2; ++step) {
      const at::Tensor input =
          tests::random_input({kBatch, kSequence, kDim}, tests::data_seed(step, 0));
      const at::Tensor weights = at::cos(at::arange(input.numel(), at::kDouble)).view_as(input);
      const bool has_part = is_along_sequence && !module->gathers;
      const at::Tensor mine = is_along_sequence ? scatter_to(input, 1, module->group) : input;
      const at::Tensor got = modules::forward(module, mine);
      (got * (has_part ? chunk_of(weights, 1, 2, self.rank) : weights)).sum().backward();
      (plain->forward(input) * weights).sum().backward();
      expect_parts(*plain, *module, " after backward " + std::to_string(step));
    }
  });
}

std::string error_of(const Names& uses, const Plan& plan, bool is_along_sequence) {
  std::string message;
  on_ranks(2, [&](Rank& self) {
    Mesh mesh(*self.world, {{"tp", 2}});
    const auto module = std::make_shared<Model>(uses);
    const auto split = parallelize(*module, plan, mesh, "tp");
    const at::Tensor input = tests::random_input({kBatch, kSequence, kDim}, 1);
    const at::Tensor mine = is_along_sequence ? scatter_to(input, 1, mesh.group({"tp"})) : input;
    std::string error = "no error";
    try {
      modules::forward(module, mine).sum().backward();
    } catch (const std::invalid_argument& caught) {
      error = caught.what();
    }
    if (self.rank == 0) message = error;
    self.by_hand->barrier()->wait();
    EXPECT_EQ(error, message);
  });
  return message;
}

void expect_refusal(const std::string& parameter, const Names& uses, const Plan& plan,
                    bool is_along_sequence) {
  const std::string error = error_of(uses, plan, is_along_sequence);
  EXPECT_NE(error.find("parallelize: parameter `" + parameter + "`, which no style"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("sequence_parallel()"), std::string::npos) << error;
}

TEST(UnnamedParameters, AreRefusedWhereARankHasAPart) {
  for (const char* name :
       {"heads.weight", "between.weight", "raw", "tail.weight", "inner.before.weight"})
    expect_refusal(name, {name}, kSequencePlan, true);
  expect_refusal("heads.weight", {"heads.weight"}, kAlongFeatures, false);
}

TEST(UnnamedParameters, AreRefusedInACheckpointedPart) {
  expect_refusal("between.weight", {"part of between.weight"}, kSequencePlan, true);
  expect_refusal("between.weight", {"part with between.weight"}, kSequencePlan, true);
}

TEST(UnnamedParameters, AreRightWhereAllRanksComputeTheSame) {
  expect_parity({"between.weight", "raw", "tail.weight", "inner.before.weight", "head.weight"},
                kAlongFeatures, false);
  expect_parity({"part of between.weight"}, kAlongFeatures, false);
  expect_parity({"head.weight"}, kSequencePlan, true);
}

TEST(UnnamedParameters, HaveWholeGradientsWithTheStyle) {
  for (const char* name : {"heads", "between", "tail", "inner.before"}) {
    Plan plan = kSequencePlan;
    plan.emplace_back(name, sequence_parallel());
    expect_parity({name + std::string(".weight")}, plan, true);
  }
  Plan plan = kAlongFeatures;
  plan.emplace_back("heads", sequence_parallel());
  expect_parity({"heads.weight"}, plan, false);
}

// What needs no gradient may be unnamed.
TEST(UnnamedParameters, MayBeFrozenAndEvaluated) {
  on_ranks(2, [](Rank& self) {
    Mesh mesh(*self.world, {{"tp", 2}});
    const auto module = std::make_shared<Model>(Names{"between.weight"});
    const auto split = parallelize(*module, kSequencePlan, mesh, "tp");
    const at::Tensor input =
        scatter_to(tests::random_input({kBatch, kSequence, kDim}, 1), 1, mesh.group({"tp"}));
    {
      const torch::NoGradGuard no_grad;
      modules::forward(module, input);
    }
    module->between->weight.requires_grad_(false);
    modules::forward(module, input).sum().backward();
    EXPECT_TRUE(module->norm1->weight.grad().defined());
  });
}

}  // namespace
}  // namespace pipewright::tp
