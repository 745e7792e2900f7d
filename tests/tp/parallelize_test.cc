// Styles and layouts one by one against the whole module, and errors.
#include "pipewright/tp/parallelize.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <regex>

#include "pipewright/comms/chunk.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/ir/errors.h"
#include "pipewright/modules/distribution.h"
#include "pipewright/modules/forward.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"

namespace pipewright::tp {
namespace {

namespace nn = torch::nn;
using comms::Mesh;
using comms::TensorPlacement;
using tests::on_ranks;
using tests::Rank;

const TensorPlacement kCopy = TensorPlacement::replicate();

at::Tensor chunk(const at::Tensor& whole, const std::optional<int>& dim, const Rank& self) {
  if (!dim) return whole;
  const comms::Chunk mine = comms::chunk_of(whole.size(*dim), self.world->size(), self.rank);
  return whole.narrow(*dim, mine.begin, mine.length);
}

// Equal on all ranks: the default generator belongs to the process.
void draw(nn::Module& module) {
  const torch::NoGradGuard no_grad;
  module.to(at::kDouble);
  uint64_t seed = 100;
  for (at::Tensor& weight : module.parameters())
    weight.copy_(tests::random_input(weight.sizes(), ++seed));
}

// Forward and backward of `split` on this rank's part of the input, compared with `plain`'s on the
// whole one. The loss weighs each element differently.
template <typename Module>
void expect_same(Rank& self, Module plain, Module split, const Style& style,
                 const at::Tensor& input, const TensorPlacement& in, const TensorPlacement& out) {
  Mesh mesh(*self.world, {{"tp", self.world->size()}});
  const auto tp = parallelize(*split, {{"", style}}, mesh, "tp");
  at::Tensor whole = input.clone(), part = chunk(input, in.dim(), self).clone();
  const bool differentiable = input.is_floating_point();
  if (differentiable) whole.requires_grad_(), part.requires_grad_();
  const at::Tensor expected = plain->forward(whole);
  const at::Tensor got = modules::forward(split, part);
  EXPECT_TRUE(at::allclose(chunk(expected, out.dim(), self), got)) << style.name();
  const at::Tensor weights =
      at::cos(at::arange(expected.numel(), at::kDouble)).reshape(expected.sizes());
  (expected * weights).sum().backward();
  (got * chunk(weights, out.dim(), self)).sum().backward();
  for (const auto& named : plain->named_parameters()) {
    const at::Tensor parameter = split->named_parameters()[named.key()];
    const auto placement = modules::layout_of(parameter).layout.placements()[0];
    const at::Tensor& grad = parameter.grad();
    ASSERT_TRUE(grad.defined()) << named.key();
    EXPECT_TRUE(at::allclose(chunk(named.value().grad(), placement.dim(), self), grad))
        << style.name() << " " << named.key();
    EXPECT_TRUE(at::equal(modules::full_tensor(parameter), named.value())) << named.key();
  }
  if (differentiable) {
    EXPECT_TRUE(at::allclose(chunk(whole.grad(), in.dim(), self), part.grad())) << style.name();
  }
}

TEST(Styles, Linear) {
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, [](Rank& self) {
      const auto expect = [&](const Style& style, const TensorPlacement& in,
                              const TensorPlacement& out) {
        for (const bool bias : {true, false}) {
          nn::Linear plain(nn::LinearOptions(7, 5).bias(bias));
          draw(*plain);
          nn::Linear split(std::dynamic_pointer_cast<nn::LinearImpl>(plain->clone()));
          expect_same(self, plain, split, style, tests::random_input({6, 4, 7}, 2), in, out);
        }
      };
      const TensorPlacement rows = TensorPlacement::shard(0), features = TensorPlacement::shard(-1);
      expect(colwise_parallel(), kCopy, features);
      expect(colwise_parallel({.output = kCopy}), kCopy, kCopy);
      expect(colwise_parallel({.input = rows}), rows, features);
      expect(colwise_parallel({.input = rows, .output = kCopy}), rows, kCopy);
      expect(rowwise_parallel(), features, kCopy);
      expect(rowwise_parallel({.input = kCopy}), kCopy, kCopy);
      expect(rowwise_parallel({.output = rows}), features, rows);
      expect(rowwise_parallel({.output = TensorPlacement::shard(1)}), features,
             TensorPlacement::shard(1));
    });
  }
}

TEST(Styles, Embedding) {
  for (const int ranks : {1, 2, 4}) {
    on_ranks(ranks, [](Rank& self) {
      // Over 4 ranks, 9 rows are 3, 3, 3 and 0.
      const at::Tensor indices = tests::random_tokens({4, 6}, 9, 3);
      const auto expect = [&](const Style& style, const TensorPlacement& out) {
        nn::Embedding plain(9, 5);
        draw(*plain);
        nn::Embedding split(std::dynamic_pointer_cast<nn::EmbeddingImpl>(plain->clone()));
        expect_same(self, plain, split, style, indices, kCopy, out);
      };
      expect(colwise_parallel(), TensorPlacement::shard(-1));
      expect(colwise_parallel({.output = kCopy}), kCopy);
      expect(rowwise_parallel(), kCopy);
      expect(rowwise_parallel({.output = TensorPlacement::shard(1)}), TensorPlacement::shard(1));
    });
  }
}

struct Model : nn::Module {
  Model() {
    up = register_module("up", nn::Linear(4, 6));
    down = register_module("down", nn::Linear(6, 4));
    tokens = register_module("tokens", nn::Embedding(8, 4));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({4})));
  }
  nn::Linear up{nullptr}, down{nullptr};
  nn::Embedding tokens{nullptr};
  nn::LayerNorm norm{nullptr};
};

// The values of rank 0 count, and an assigned whole tensor is split again.
TEST(Parallelize, TakesTheFirstRanksValuesAndAssignedOnes) {
  on_ranks(2, [](Rank& self) {
    Mesh mesh(*self.world, {{"tp", 2}});
    const auto module = std::make_shared<Model>();
    const torch::NoGradGuard no_grad;
    module->up->weight.fill_(self.rank + 1);
    const at::Tensor same = module->up->weight;
    const auto tp = parallelize(*module, {{"up", colwise_parallel()}}, mesh, "tp");
    EXPECT_TRUE(same.is_same(module->up->weight));
    const auto layouts = modules::layouts(*module);
    EXPECT_EQ(layouts.at("up.weight").layout.text(), "[6, 4] tp=2:shard(0)");
    EXPECT_EQ(layouts.at("up.weight").rank, self.rank);
    EXPECT_EQ(layouts.at("norm.weight").layout.text(), "[4] tp=2:replicate");
    EXPECT_EQ(layouts.size(), 7u);
    EXPECT_TRUE(at::equal(module->up->weight, at::ones({3, 4})));
    const at::Tensor whole = at::arange(24, at::kFloat).reshape({6, 4});
    modules::set_full_tensor(same, whole);
    EXPECT_TRUE(at::equal(module->up->weight, whole.narrow(0, 3 * self.rank, 3)));
    EXPECT_TRUE(at::equal(modules::full_tensor(same), whole));
  });
}

// A module that the plan does not name would compute with a part of the weight.
TEST(Errors, AWeightThatIsTiedToAModuleOutsideOfThePlan) {
  struct Tied : Model {
    Tied() { register_parameter("output_weight", tokens->weight); }
  };
  on_ranks(2, [](Rank& self) {
    Mesh mesh(*self.world, {{"tp", 2}});
    const auto module = std::make_shared<Tied>();
    try {
      const auto tp = parallelize(*module, {{"tokens", rowwise_parallel()}}, mesh, "tp");
      ADD_FAILURE();
    } catch (const std::invalid_argument& error) {
      EXPECT_STREQ(error.what(),
                   "parallelize: `output_weight` is tied to `tokens.weight`, which is split: "
                   "expected both modules in the plan");
    }
    EXPECT_EQ(module->tokens->weight.size(0), 8);
  });
}

// Both ends of a tied weight are split along the vocabulary.
TEST(Parallelize, KeepsTiedWeights) {
  on_ranks(2, [](Rank& self) {
    Mesh mesh(*self.world, {{"tp", 2}});
    const auto module = std::make_shared<Model>();
    const auto head =
        module->register_module("head", nn::Linear(nn::LinearOptions(4, 8).bias(false)));
    head->weight = module->tokens->weight;
    const auto tp = parallelize(
        *module, {{"tokens", rowwise_parallel()}, {"head", colwise_parallel()}}, mesh, "tp");
    EXPECT_EQ(head->weight.sizes(), at::IntArrayRef({4, 4}));
    EXPECT_TRUE(head->weight.is_same(module->tokens->weight));
  });
}

std::string error_of(const Plan& plan, const std::function<void(Model&)>& prepare = nullptr) {
  std::string message;
  on_ranks(2, [&](Rank& self) {
    Mesh mesh(*self.world, {{"tp", 2}});
    const auto module = std::make_shared<Model>();
    if (prepare) prepare(*module);
    const std::vector<int64_t> sizes = module->up->weight.sizes().vec();
    std::string mine = "no error";
    try {
      const auto tp = parallelize(*module, plan, mesh, "tp");
    } catch (const std::invalid_argument& error) {
      mine = error.what();
    }
    EXPECT_EQ(module->up->weight.sizes(), sizes) << "unchanged after an error";
    if (self.rank == 0) message = mine;
    self.by_hand->barrier()->wait();
    EXPECT_EQ(mine, message);
  });
  return message;
}

TEST(Errors, NameTheModuleAndWhatIsExpected) {
  EXPECT_EQ(error_of({{"up", colwise_parallel()}, {"middle.*", rowwise_parallel()}}),
            "parallelize: `middle.*` in the plan: expected the path of a module");
  EXPECT_EQ(error_of({{"u*", colwise_parallel()}, {"up", rowwise_parallel()}}),
            "parallelize: module `up` is named twice, the second time by `up`");
  EXPECT_EQ(error_of({{"norm", colwise_parallel()}}),
            "parallelize: colwise_parallel of `norm`: expected a Linear or an Embedding, got "
            "torch::nn::LayerNormImpl");
  EXPECT_EQ(error_of({{"up", colwise_parallel({.output = TensorPlacement::shard(0)})}}),
            "parallelize: colwise_parallel of `up`: output of colwise_parallel: expected shard(-1) "
            "or replicate, got shard(0)");
  EXPECT_EQ(
      error_of({{"down", rowwise_parallel({.output = TensorPlacement::strided_shard(0, 2)})}}),
      "parallelize: rowwise_parallel of `down`: output of rowwise_parallel: expected "
      "replicate or shard, got strided_shard(0,2)");
  EXPECT_EQ(error_of({{"up", colwise_parallel({.input_is_prepared = true})}}),
            "parallelize: colwise_parallel of `up`: expected a module around it with "
            "prepare_input, which prepares its input");
  EXPECT_EQ(
      error_of({{"", prepare_input()}, {"down", rowwise_parallel({.input_is_prepared = true})}}),
      "parallelize: rowwise_parallel of `down`: a prepared input: expected colwise_parallel "
      "without another layout of its input");
  EXPECT_EQ(
      error_of({{"", prepare_input()}, {"tokens", colwise_parallel({.input_is_prepared = true})}}),
      "parallelize: colwise_parallel of `tokens`: a prepared input: expected a Linear, got "
      "an Embedding");
  EXPECT_EQ(error_of({{"", prepare_input({.output = kCopy})}}),
            "parallelize: prepare_input of the module: expected a layout of the input and nothing "
            "else");
  EXPECT_EQ(error_of({{"up", colwise_parallel()}},
                     [](Model& model) {
                       model.up->weight.mutable_grad() = at::ones_like(model.up->weight);
                     }),
            "parallelize: colwise_parallel of `up`: `weight` has a gradient: expected none before "
            "the weight is split");
  EXPECT_EQ(error_of({{"tokens", rowwise_parallel()}, {"up", colwise_parallel()}},
                     [](Model& model) { model.up->weight = model.tokens->weight; }),
            "parallelize: colwise_parallel of `up`: a weight of sizes [8, 4]: expected [6, 4], a "
            "weight that nothing has split");
}

TEST(Errors, TiedWeightsThatAreSplitDifferently) {
  on_ranks(2, [](Rank& self) {
    Mesh mesh(*self.world, {{"tp", 2}});
    const auto module = std::make_shared<Model>();
    const auto head =
        module->register_module("head", nn::Linear(nn::LinearOptions(4, 8).bias(false)));
    head->weight = module->tokens->weight;
    try {
      const auto tp = parallelize(
          *module, {{"tokens", colwise_parallel()}, {"head", colwise_parallel()}}, mesh, "tp");
      ADD_FAILURE();
    } catch (const std::invalid_argument& error) {
      EXPECT_STREQ(error.what(),
                   "parallelize: colwise_parallel of `head`: `weight` is tied to `tokens.weight`, "
                   "which is shard(1): expected the same, got shard(0)");
    }
  });
}

// Ranks with different models all get the same error, from the first that differs.
TEST(Errors, RanksThatDiffer) {
  on_ranks(2, [](Rank& self) {
    Mesh mesh(*self.world, {{"tp", 2}});
    nn::Linear linear(4, self.rank == 0 ? 6 : 8);
    EXPECT_THROW(static_cast<void>(parallelize(*linear, {{"", colwise_parallel()}}, mesh, "tp")),
                 std::invalid_argument);
    EXPECT_EQ(linear->weight.size(0), self.rank == 0 ? 6 : 8);
  });
}

// A plan that differs only in what is communicated would let ranks call different collectives.
TEST(Errors, PlansOrOptionsThatDiffer) {
  const auto error_of = [](const Plan& first, const Plan& second, bool second_checks) {
    std::string error;
    on_ranks(2, [&](Rank& self) {
      Mesh mesh(*self.world, {{"tp", 2}});
      const auto module = std::make_shared<Model>();
      std::string mine = "no error";
      try {
        const auto tp = parallelize(*module, self.rank == 0 ? first : second, mesh, "tp",
                                    {.check_inputs = self.rank == 1 && second_checks});
      } catch (const std::invalid_argument& caught) {
        mine = caught.what();
      }
      if (self.rank == 0) error = mine;
      self.by_hand->barrier()->wait();
      EXPECT_EQ(mine, error);
      EXPECT_EQ(module->up->weight.size(0), 6);
    });
    return error;
  };
  const Plan plain = {{"up", colwise_parallel()}};
  EXPECT_EQ(
      error_of(plain, {{"up", colwise_parallel({.input = TensorPlacement::shard(1)})}}, false),
      "ranks disagree: expected colwise_parallel of `up` as on rank 0, got colwise_parallel "
      "with input shard(1) of `up` on rank 1");
  EXPECT_EQ(error_of(plain, {{"", prepare_input()}, plain[0]}, false),
            "ranks disagree: expected colwise_parallel of `up` as on rank 0, got prepare_input of "
            "the module on rank 1");
  EXPECT_EQ(error_of(plain, plain, true),
            "ranks disagree: expected unchecked inputs as on rank 0, got checked inputs on rank 1");
}

// In forward: all ranks throw, and the same.
TEST(Errors, OfInputs) {
  for (const bool is_checked : {false, true}) {
    std::string message;
    on_ranks(2, [&](Rank& self) {
      Mesh mesh(*self.world, {{"tp", 2}});
      const auto module = std::make_shared<Model>();
      module->to(at::kDouble);
      const auto tp =
          parallelize(*module,
                      {{"up", colwise_parallel()},
                       {"tokens", rowwise_parallel({.output = TensorPlacement::shard(3)})}},
                      mesh, "tp", {.check_inputs = is_checked});
      const auto error_of = [&](const std::function<at::Tensor()>& forward) {
        std::string mine = "no error";
        try {
          static_cast<void>(forward());
        } catch (const std::invalid_argument& error) {
          mine = error.what();
        }
        if (self.rank == 0) message = mine;
        self.by_hand->barrier()->wait();
        EXPECT_EQ(mine, message);
        self.by_hand->barrier()->wait();
        return mine;
      };
      const auto forward_up = [&](const at::Tensor& input) {
        const auto up = [&](const modules::Tensors& in) {
          return modules::Tensors{modules::forward(module->up, in[0])};
        };
        return error_of([&] { return modules::call(*module, up, {input, at::Tensor()})[0]; });
      };
      EXPECT_EQ(forward_up(at::ones({2, 4}, at::kDouble)), "no error");
      const std::string different = forward_up(at::full({2, 4}, 1.0 + self.rank, at::kDouble));
      if (is_checked) {
        const std::regex expected(
            "ranks disagree: expected input 0 of the parallelized module, Double \\[2, 4\\] with "
            "hash [0-9]+ as on rank 0, got input 0 .* with hash [0-9]+ on rank 1");
        EXPECT_TRUE(std::regex_match(different, expected)) << different;
      } else {
        EXPECT_EQ(different, "no error");
      }
      if (is_checked) {
        EXPECT_TRUE(std::regex_match(
            forward_up(at::ones({2 + self.rank, 4}, at::kDouble)),
            std::regex(
                "ranks disagree: expected input 0 .*, Double \\[2, 4\\] with hash [0-9]+ as on "
                "rank 0, got input 0 .*, Double \\[3, 4\\] with hash [0-9]+ on rank 1")));
      }
      EXPECT_EQ(error_of([&] {
                  return modules::forward(module->tokens, at::zeros({2, 3}, at::kLong));
                }),
                "reduce_scatter: expected a dimension of a tensor of 3, got 3");
    });
  }
}

// Past its hook a module would compute with a part of its weight, with and without fully_shard, in
// training and in evaluation. Backward reads the weights too, which is right.
TEST(Errors, ADirectCall) {
  for (const bool is_sharded : {false, true}) {
    on_ranks(4, [&](Rank& self) {
      Mesh mesh(*self.world, {{"dp", 2}, {"tp", 2}});
      const auto module = std::make_shared<Model>();
      const auto tp = parallelize(
          *module, {{"up", colwise_parallel()}, {"tokens", rowwise_parallel()}}, mesh, "tp");
      std::shared_ptr<fsdp::Sharded> unit;
      if (is_sharded) unit = fsdp::fully_shard(*module, mesh, {"dp"});
      const auto call = [&](const std::function<at::Tensor(const at::Tensor&)>& body) {
        const auto forward = [&](const modules::Tensors& in) {
          return modules::Tensors{body(in[0])};
        };
        return modules::call(*module, forward, {at::ones({2, 4})})[0];
      };
      const auto error_of = [&](const std::function<at::Tensor(const at::Tensor&)>& body) {
        try {
          static_cast<void>(call(body));
        } catch (const ContractError& error) {
          return std::string(error.what());
        }
        return std::string("no error");
      };
      const std::string unit_name = is_sharded ? " of the root" : "";
      for (const bool training : {true, false}) {
        const at::AutoGradMode mode(training);
        EXPECT_EQ(error_of([&](const at::Tensor& x) { return module->up->forward(x); }),
                  "parallelize: aten::addmm reads parameter `up.bias`" + unit_name +
                      ", of which this rank has a part, [3]: call its module through "
                      "modules::forward(), and keep what parallelize returned");
        const std::string tokens = error_of([&](const at::Tensor&) {
          return module->tokens->forward(at::zeros({2, 3}, at::kLong));
        });
        EXPECT_TRUE(
            tokens.starts_with("parallelize: aten::embedding reads parameter `tokens.weight`"))
            << tokens;
      }
      call([&](const at::Tensor& x) { return modules::forward(module->up, x); }).sum().backward();
      EXPECT_TRUE(module->up->weight.grad().defined());
    });
  }
}

TEST(Errors, WrappersComeAfterwards) {
  on_ranks(2, [](Rank& self) {
    Mesh mesh(*self.world, {{"tp", 2}});
    nn::Linear linear(4, 6);
    const auto replicated = ddp::replicate(*linear, mesh, {"tp"});
    EXPECT_THROW(static_cast<void>(parallelize(*linear, {{"", colwise_parallel()}}, mesh, "tp")),
                 std::invalid_argument);
  });
}

}  // namespace
}  // namespace pipewright::tp
