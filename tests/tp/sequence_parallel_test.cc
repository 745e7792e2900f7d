// Layers whose norms see a part of the sequence on each rank, alone and with fully_shard, replicate
// and activation checkpointing, against the whole layers on one rank; what I and W communicate.
#include "pipewright/tp/sequence_parallel.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/autograd/split_backward.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/modules/forward.h"
#include "pipewright/tp/communication.h"
#include "pipewright/tp/parallelize.h"
#include "tests/support/recording/recording_backend.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"
#include "tests/tp/whole_model.h"

namespace pipewright::tp {
namespace {

namespace nn = torch::nn;
using comms::Mesh;
using layout::TensorPlacement;
using tests::on_ranks;
using tests::Rank;

constexpr int64_t kBatch = 3, kSequence = 6, kDim = 4, kHidden = 7;
const TensorPlacement kAlongSequence = TensorPlacement::shard(1);
const TensorPlacement kCopy = TensorPlacement::replicate();

struct Wide : nn::Module {
  at::Tensor forward(const at::Tensor& x) { return at::gelu(modules::forward(up, x)); }
  nn::Linear up = register_module("up", nn::Linear(kDim, kHidden));
};

struct Layer : nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return x + modules::forward(down, modules::forward(wide, modules::forward(norm, x)));
  }
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kDim})));
  std::shared_ptr<Wide> wide = register_module("wide", std::make_shared<Wide>());
  nn::Linear down = register_module("down", nn::Linear(kHidden, kDim));
};

struct Model : nn::Module {
  explicit Model(bool is_checkpointed = false) : checkpointed(is_checkpointed) {
    for (int i = 0; i < 2; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), std::make_shared<Layer>()));
    const torch::NoGradGuard no_grad;
    to(at::kDouble);
    uint64_t seed = 7;
    for (at::Tensor& weight : parameters())
      weight.copy_(tests::random_input(weight.sizes(), ++seed));
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = input;
    for (const auto& layer : layers) {
      const auto function = [layer](const std::vector<at::Tensor>& in) {
        return std::vector{modules::forward(layer, in[0])};
      };
      x = checkpointed ? autograd::checkpoint(function, {x})[0] : function({x})[0];
    }
    return modules::forward(norm, x);
  }
  const bool checkpointed;
  std::vector<std::shared_ptr<Layer>> layers;
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kDim})));
};

const Plan kPlan = {{"norm", sequence_parallel()},
                    {"*.norm", sequence_parallel()},
                    {"*.wide.up", colwise_parallel({.input = kAlongSequence})},
                    {"*.down", rowwise_parallel({.output = kAlongSequence})}};

enum class Wrapped { kNot, kSharded, kReplicated };

class Sequence : public testing::TestWithParam<std::tuple<Wrapped, bool>> {};

TEST_P(Sequence, IsThatOfWholeLayers) {
  const auto [wrapped, checkpointed] = GetParam();
  on_ranks(4, [&, wrapped = wrapped, checkpointed = checkpointed](Rank& self) {
    Mesh mesh(*self.world, {{"dp", 2}, {"tp", 2}});
    const comms::BackendPtr dp = mesh.group({"dp"}), tp = mesh.group({"tp"});
    const auto plain = std::make_shared<Model>(), module = std::make_shared<Model>(checkpointed);
    const auto split = parallelize(*module, kPlan, mesh, "tp");
    std::vector<std::shared_ptr<void>> units;
    for (const auto& layer : module->layers) {
      if (wrapped == Wrapped::kSharded) units.push_back(fsdp::fully_shard(*layer, mesh, {"dp"}));
    }
    if (wrapped == Wrapped::kSharded) units.push_back(fsdp::fully_shard(*module, mesh, {"dp"}));
    if (wrapped == Wrapped::kReplicated) units.push_back(ddp::replicate(*module, mesh, {"dp"}));
    // Without a wrapper, all ranks have the same data.
    const int copy = wrapped == Wrapped::kNot ? 0 : dp->getRank();
    const auto plain_optimizer = tests::adam(*plain), optimizer = tests::adam(*module);
    for (int iteration = 0; iteration < 4; ++iteration) {
      plain_optimizer->zero_grad();
      optimizer->zero_grad();
      const at::Tensor input =
          tests::random_input({kBatch, kSequence, kDim}, tests::data_seed(iteration, copy));
      const at::Tensor weights = at::cos(at::arange(input.numel(), at::kDouble)).view_as(input);
      const at::Tensor expected = plain->forward(input);
      const at::Tensor got = modules::forward(module, scatter_to(input, 1, tp));
      EXPECT_TRUE(at::allclose(chunk_of(expected, 1, 2, tp->getRank()), got, 1e-9, 1e-11));
      (expected * weights).sum().backward();
      (got * chunk_of(weights, 1, 2, tp->getRank())).sum().backward();
      if (wrapped != Wrapped::kNot) tests::average_grads(*plain, *dp);
      expect_parts(*plain, *module, " after backward " + std::to_string(iteration));
      plain_optimizer->step();
      optimizer->step();
      expect_parts(*plain, *module, " after step " + std::to_string(iteration));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, Sequence,
                         testing::Combine(testing::Values(Wrapped::kNot, Wrapped::kSharded,
                                                          Wrapped::kReplicated),
                                          testing::Bool()));

// Parts of a sequence that are of different length or empty: 5 positions are 3 and 2, or 2, 2, 1
// and none. Also where a module around the layer prepares the input.
TEST(SequenceParallel, UnevenSequences) {
  for (const bool prepared : {false, true}) {
    for (const auto& [length, ranks] : {std::pair{5, 2}, {1, 2}, {5, 4}}) {
      on_ranks(ranks, [&, length = length, ranks = ranks](Rank& self) {
        Mesh mesh(*self.world, {{"tp", ranks}});
        const auto plain = std::make_shared<Model>(), module = std::make_shared<Model>();
        const Style::Layouts whole = {.input = kAlongSequence, .input_length = length};
        Plan plan = {{"norm", sequence_parallel()},
                     {"*.norm", sequence_parallel()},
                     {"*.down", rowwise_parallel({.output = kAlongSequence})}};
        if (prepared) {
          plan.emplace_back("*.wide", prepare_input(whole));
          plan.emplace_back("*.wide.up", colwise_parallel({.input_is_prepared = true}));
        } else {
          plan.emplace_back("*.wide.up", colwise_parallel(whole));
        }
        const auto split = parallelize(*module, plan, mesh, "tp");
        const at::Tensor input = tests::random_input({kBatch, length, kDim}, 3).requires_grad_();
        const at::Tensor mine = chunk_of(input.detach(), 1, ranks, self.rank).clone();
        mine.requires_grad_();
        const at::Tensor expected = plain->forward(input);
        const at::Tensor got = modules::forward(module, mine);
        EXPECT_TRUE(is_close(chunk_of(expected, 1, ranks, self.rank), got));
        const at::Tensor weights = at::cos(at::arange(input.numel(), at::kDouble)).view_as(input);
        expected.backward(weights);
        got.backward(chunk_of(weights, 1, ranks, self.rank));
        EXPECT_TRUE(is_close(chunk_of(input.grad(), 1, ranks, self.rank), mine.grad()));
        expect_parts(*plain, *module, " after backward");
      });
    }
  }
}

// Per layer, forward gathers and reduce-scatters once, and so does the I of a split backward, which
// also sums the gradients of norms, one small all-reduce per weight. W communicates nothing.
TEST(SequenceParallel, SplitBackwardCommunicatesInI) {
  on_ranks(2, [](Rank& self) {
    comms::World recorded = self.world->wrapped(
        [&](comms::BackendPtr backend) { return comms::record(backend, self.log); });
    Mesh mesh(recorded, {{"tp", 2}});
    const auto plain = std::make_shared<Model>(), module = std::make_shared<Model>();
    const auto split = parallelize(*module, kPlan, mesh, "tp");
    const at::Tensor whole = tests::random_input({kBatch, kSequence, kDim}, 3);
    const at::Tensor input = chunk_of(whole, 1, 2, self.rank).clone().requires_grad_();
    const auto expect_calls = [&](const std::vector<std::string>& expected) {
      std::vector<std::string> names;
      for (const comms::CallRecord& call : self.log->calls()) names.push_back(call.op);
      EXPECT_EQ(names, expected);
      self.log->clear();
    };
    self.log->clear();
    autograd::NodeRange nodes;
    const at::Tensor output = modules::forward(module, input);
    nodes.end();
    const std::string gather = "_allgather_base", scatter = "_reduce_scatter_base";
    expect_calls({gather, scatter, gather, scatter});
    const auto work = std::make_shared<autograd::WeightWork>();
    const auto grads = autograd::backward_input({autograd::root_of(output)},
                                                {at::ones_like(output)}, {input}, nodes, *work);
    EXPECT_EQ(self.log->count("allreduce"), 6);
    EXPECT_EQ(self.log->count(gather), 2);
    EXPECT_EQ(self.log->count(scatter), 2);
    self.log->clear();
    EXPECT_TRUE(module->norm->weight.grad().defined());
    work->run();
    expect_calls({});

    const at::Tensor plain_input = whole.clone().requires_grad_();
    plain->forward(plain_input).sum().backward();
    EXPECT_TRUE(at::allclose(chunk_of(plain_input.grad(), 1, 2, self.rank), grads[0], 1e-9, 1e-11));
    expect_parts(*plain, *module, " after W");
  });
}

// A first stage has no gradient of its input, and a single weight below its first communication:
// that of the tokens. I communicates all the same, and W nothing. Two microbatches, interleaved.
struct FirstStage : Model {
  at::Tensor forward(const at::Tensor& indices) {
    return Model::forward(modules::forward(tokens, indices));
  }
  nn::Embedding tokens = register_module("tokens", nn::Embedding(5, kDim));
};

TEST(SequenceParallel, WCommunicatesNothingInAFirstStage) {
  for (const bool sequence : {true, false}) {
    on_ranks(2, [&](Rank& self) {
      comms::World recorded = self.world->wrapped(
          [&](comms::BackendPtr backend) { return comms::record(backend, self.log); });
      Mesh mesh(recorded, {{"tp", 2}});
      const auto plain = std::make_shared<FirstStage>(), module = std::make_shared<FirstStage>();
      for (const auto& each : {plain, module}) {
        const torch::NoGradGuard no_grad;
        each->to(at::kDouble);
        each->tokens->weight.copy_(tests::random_input({5, kDim}, 3));
        // Then nothing but the tokens is below the first column-parallel layer.
        if (sequence) continue;
        for (auto& norm : {each->layers[0]->norm, each->layers[1]->norm, each->norm}) {
          norm->weight.requires_grad_(false);
          norm->bias.requires_grad_(false);
        }
      }
      Plan plan = sequence
                      ? kPlan
                      : Plan{{"*.wide.up", colwise_parallel()}, {"*.down", rowwise_parallel()}};
      plan.emplace_back("tokens", rowwise_parallel({.output = sequence ? kAlongSequence : kCopy}));
      const auto split = parallelize(*module, plan, mesh, "tp");
      const auto indices = [](int microbatch) {
        return tests::random_tokens({kBatch, kSequence}, 5, 7 + static_cast<uint64_t>(microbatch));
      };
      std::vector<std::shared_ptr<autograd::WeightWork>> works;
      for (int i = 0; i < 2; ++i) {
        plain->forward(indices(i)).pow(2).sum().backward();
        autograd::NodeRange nodes;
        const at::Tensor output = module->forward(indices(i));
        nodes.end();
        works.push_back(std::make_shared<autograd::WeightWork>());
        self.log->clear();
        autograd::backward_input({autograd::root_of(output)}, {2 * output.detach()}, {}, nodes,
                                 *works.back());
        // The second layer's, the first layer's, the tokens', and 6 of norms.
        EXPECT_EQ(self.log->count("_allgather_base"), sequence ? 3 : 0);
        EXPECT_EQ(self.log->count("_reduce_scatter_base"), sequence ? 2 : 0);
        EXPECT_EQ(self.log->count("allreduce"), sequence ? 6 : 2);
      }
      self.log->clear();
      for (const auto& work : works) work->run();
      EXPECT_TRUE(self.log->calls().empty());
      expect_parts(*plain, *module, " after W");
    });
  }
}

// The gradient of a shared weight is summed once, of one that was frozen at first too, and no
// longer when the module is no longer parallelized.
TEST(SequenceParallel, SumsOncePerBackward) {
  on_ranks(2, [](Rank& self) {
    Mesh mesh(*self.world, {{"tp", 2}});
    struct Tied : nn::Module {
      nn::LayerNorm first = register_module("first", nn::LayerNorm(nn::LayerNormOptions({2})));
      nn::LayerNorm second = register_module("second", first);
    };
    const auto module = std::make_shared<Tied>();
    module->first->weight.requires_grad_(false);
    auto split = parallelize(
        *module, {{"first", sequence_parallel()}, {"second", sequence_parallel()}}, mesh, "tp");
    EXPECT_FALSE(module->first->weight.requires_grad());
    module->first->weight.requires_grad_(true);
    const at::Tensor input = at::tensor({1.0, 3.0}, at::kFloat);  // normalized: -1 and 1
    const auto run = [&] {
      module->zero_grad();
      (modules::forward(module->first, input) + modules::forward(module->second, input))
          .sum()
          .backward();
      return module->first->weight.grad();
    };
    const at::Tensor once = at::tensor({-2.0, 2.0}, at::kFloat);
    EXPECT_TRUE(at::allclose(run(), 2 * once, 1e-3));
    split.reset();
    EXPECT_TRUE(at::allclose(run(), once, 1e-3));
  });
}

}  // namespace
}  // namespace pipewright::tp
