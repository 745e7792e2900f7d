// What parallelize() refuses, and what it says then: the same on all ranks.
#include "pipewright/ir/errors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "pipewright/comms/mesh.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/modules/forward.h"
#include "pipewright/tp/parallelize.h"
#include "tests/support/training/on_ranks.h"
#include "tests/tp/small_model.h"

namespace pipewright::tp {
namespace {

namespace nn = torch::nn;
using comms::Mesh;
using layout::TensorPlacement;
using tests::on_ranks;
using tests::Rank;

const TensorPlacement kCopy = TensorPlacement::replicate();

std::string error_of(const Plan& plan, const std::function<void(SmallModel&)>& prepare = nullptr) {
  std::string message;
  on_ranks(2, [&](Rank& self) {
    Mesh mesh(*self.world, {{"tp", 2}});
    const auto module = std::make_shared<SmallModel>();
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
  EXPECT_EQ(error_of({{"", prepare_input({.input_length = 5})}}),
            "parallelize: prepare_input of the module: input_length: expected an input that is a "
            "shard, got replicate");
  EXPECT_EQ(error_of({{"down", rowwise_parallel({.input_length = 5})}}),
            "parallelize: rowwise_parallel of `down`: input_length: expected colwise_parallel or "
            "prepare_input");
  EXPECT_EQ(error_of({{"", prepare_input({.output = kCopy})}}),
            "parallelize: prepare_input of the module: expected a layout of the input and nothing "
            "else");
  EXPECT_EQ(error_of({{"up", colwise_parallel()}},
                     [](SmallModel& model) {
                       model.up->weight.mutable_grad() = at::ones_like(model.up->weight);
                     }),
            "parallelize: colwise_parallel of `up`: `weight` has a gradient: expected none before "
            "the weight is split");
  EXPECT_EQ(error_of({{"tokens", rowwise_parallel()}, {"up", colwise_parallel()}},
                     [](SmallModel& model) { model.up->weight = model.tokens->weight; }),
            "parallelize: colwise_parallel of `up`: a weight of sizes [8, 4]: expected [6, 4], a "
            "weight that nothing has split");
}

// A module that the plan does not name would compute with a part of the weight.
TEST(Errors, AWeightThatIsTiedToAModuleOutsideOfThePlan) {
  struct Tied : SmallModel {
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

TEST(Errors, TiedWeightsThatAreSplitDifferently) {
  on_ranks(2, [](Rank& self) {
    Mesh mesh(*self.world, {{"tp", 2}});
    const auto module = std::make_shared<SmallModel>();
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
      const auto module = std::make_shared<SmallModel>();
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
  const auto of_length = [](int64_t length) {
    return Plan{
        {"up", colwise_parallel({.input = TensorPlacement::shard(1), .input_length = length})}};
  };
  EXPECT_EQ(error_of(of_length(5), of_length(6), false),
            "ranks disagree: expected colwise_parallel with input shard(1) of length 5 of `up` as "
            "on rank 0, got colwise_parallel with input shard(1) of length 6 of `up` on rank 1");
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
      const auto module = std::make_shared<SmallModel>();
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
                "rowwise_parallel of `tokens`: output shard(3): expected a tensor with dimension "
                "3, got sizes [2, 3, 4]");
    });
  }
}

// An input with fewer dimensions than the layout shards, in forward: the layer, and what it got.
TEST(Errors, ADimensionThatAnInputDoesNotHave) {
  on_ranks(2, [](Rank& self) {
    Mesh mesh(*self.world, {{"tp", 2}});
    const auto error_of = [&](const Plan& plan, bool whole_module) -> std::string {
      const auto module = std::make_shared<SmallModel>();
      const auto tp = parallelize(*module, plan, mesh, "tp");
      const at::Tensor input = at::ones({2, 4});
      try {
        if (whole_module) {
          const auto forward = [&](const modules::Tensors& in) {
            return modules::Tensors{modules::forward(module->up, in[0])};
          };
          static_cast<void>(modules::call(*module, forward, {input}));
        } else {
          static_cast<void>(modules::forward(module->up, input));
        }
      } catch (const std::exception& error) {
        return error.what();
      }
      return "no error";
    };
    const Style::Layouts third = {.input = TensorPlacement::shard(3)};
    EXPECT_EQ(error_of({{"up", colwise_parallel(third)}}, false),
              "colwise_parallel of `up`: input shard(3): expected a tensor with dimension 3, got "
              "sizes [2, 4]");
    EXPECT_EQ(error_of({{"up", colwise_parallel({.input = TensorPlacement::shard(-3)})}}, false),
              "colwise_parallel of `up`: input shard(-3): expected a tensor with dimension -3, got "
              "sizes [2, 4]");
    EXPECT_EQ(error_of({{"", prepare_input(third)},
                        {"up", colwise_parallel({.input_is_prepared = true})}},
                       true),
              "prepare_input of the module: input shard(3): expected a tensor with dimension 3, "
              "got sizes [2, 4]");
    EXPECT_EQ(
        error_of({{"up", rowwise_parallel({.input = kCopy, .output = TensorPlacement::shard(3)})}},
                 false),
        "rowwise_parallel of `up`: output shard(3): expected a tensor with dimension 3, got "
        "sizes [2, 6]");
  });
}

// Past its hook a module would compute with a part of its weight, with and without fully_shard, in
// training and in evaluation. Backward reads the weights too, which is right.
TEST(Errors, ADirectCall) {
  for (const bool is_sharded : {false, true}) {
    on_ranks(4, [&](Rank& self) {
      Mesh mesh(*self.world, {{"dp", 2}, {"tp", 2}});
      const auto module = std::make_shared<SmallModel>();
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

// A part that is cast is still a part, and has a gradient: for a penalty on weights, say.
TEST(Errors, CastPartsReadOutsideTheirModule) {
  on_ranks(2, [](Rank& self) {
    Mesh mesh(*self.world, {{"tp", 2}});
    nn::Linear linear(4, 6);
    const auto split = parallelize(*linear, {{"", colwise_parallel()}}, mesh, "tp");
    const at::Tensor weight = linear->weight.detach().clone();
    linear->weight.to(at::kDouble).square().sum().backward();
    EXPECT_TRUE(at::equal(linear->weight.grad(), 2 * weight));
    linear->to(at::kDouble);
    const at::Tensor x = at::ones({2, 4}, at::kDouble);
    EXPECT_THROW(static_cast<void>(linear->forward(x)), ContractError);
    EXPECT_EQ(modules::forward(linear.ptr(), x).size(1), 3);
  });
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
