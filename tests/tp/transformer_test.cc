// PyTorch's rows with a transformer, with and without sequence parallelism: tensor parallelism and
// fully_shard along either dimension of each matrix, and clipping in 2-D and 3-D. A plain copy,
// averaged by hand over the data-parallel ranks, is the judge.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/modules/clip_grad_norm.h"
#include "pipewright/modules/distribution.h"
#include "pipewright/modules/forward.h"
#include "pipewright/tp/parallelize.h"
#include "tests/support/ranks/ground.h"
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

constexpr int64_t kVocabulary = 8, kTokens = 16, kDim = 16, kHead = 4;

nn::Linear linear(int64_t in, int64_t out, bool bias) {
  return nn::Linear(nn::LinearOptions(in, out).bias(bias));
}

struct Attention : nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const auto heads = [&](const nn::Linear& projection) {  // those of this rank
      return modules::forward(projection, x).unflatten(-1, {-1, kHead}).transpose(1, 2);
    };
    const at::Tensor mixed =
        at::scaled_dot_product_attention(heads(wq), heads(wk), heads(wv), {}, 0.0, true);
    return modules::forward(wo, mixed.transpose(1, 2).flatten(2));
  }
  nn::Linear wq = register_module("wq", linear(kDim, kDim, false));
  nn::Linear wk = register_module("wk", linear(kDim, kDim, false));
  nn::Linear wv = register_module("wv", linear(kDim, kDim, false));
  nn::Linear wo = register_module("wo", linear(kDim, kDim, false));
};

struct Block : nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = x + modules::forward(attention, attention_norm(x));
    return h + modules::forward(w2, at::gelu(modules::forward(w1, ffn_norm(h))));
  }
  nn::LayerNorm attention_norm =
      register_module("attention_norm", nn::LayerNorm(nn::LayerNormOptions({kDim})));
  std::shared_ptr<Attention> attention =
      register_module("attention", std::make_shared<Attention>());
  nn::LayerNorm ffn_norm = register_module("ffn_norm", nn::LayerNorm(nn::LayerNormOptions({kDim})));
  nn::Linear w1 = register_module("w1", linear(kDim, 4 * kDim, true));
  nn::Linear w2 = register_module("w2", linear(4 * kDim, kDim, true));
};

// PyTorch's model of these tests, without dropout.
struct Transformer : nn::Module {
  // Equal on all ranks. `tied`: the output layer uses the weight of the tokens; the one that it has
  // registered stays unused, because LibTorch cannot replace it.
  explicit Transformer(int layers, bool tied = false) {
    const autograd::GeneratorScope generator(42);
    tokens = register_module("tokens", nn::Embedding(kVocabulary, kDim));
    positions = register_module("positions", nn::Embedding(kTokens, kDim));
    for (int i = 0; i < layers; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>()));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kDim})));
    output = register_module("output", linear(kDim, kVocabulary, false));
    to(tests::here(), at::kDouble);
    if (tied) output->weight = tokens->weight;
  }
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor places = at::arange(input.size(1), input.options());
    at::Tensor x = modules::forward(tokens, input) + modules::forward(positions, places);
    for (const auto& block : blocks) x = modules::forward(block, x);
    return modules::forward(output, norm(x));
  }
  nn::Embedding tokens{nullptr}, positions{nullptr};
  std::vector<std::shared_ptr<Block>> blocks;
  nn::LayerNorm norm{nullptr};
  nn::Linear output{nullptr};
};

// PyTorch's plans. With sequence parallelism every rank has a part of the sequence outside of
// attention and feed-forward.
Plan plan_of(bool sequence) {
  const TensorPlacement copy = TensorPlacement::replicate();
  const TensorPlacement between = sequence ? TensorPlacement::shard(1) : copy;
  const Style columns = colwise_parallel({.input = between});
  const Style rows = rowwise_parallel({.output = between});
  Plan plan = {
      {"tokens", rows},
      {"positions", rowwise_parallel({.output = sequence ? TensorPlacement::shard(0) : copy})},
      {"block*.attention", prepare_input({.input = between})},
      {"block*.attention.w[qkv]", colwise_parallel({.input_is_prepared = true})},
      {"block*.attention.wo", rows},
      {"block*.w1", columns},
      {"block*.w2", rows},
      {"output", colwise_parallel({.input = between, .output = copy})}};
  if (sequence) {
    plan.emplace_back("block*.*_norm", sequence_parallel());
    plan.emplace_back("norm", sequence_parallel());
  }
  return plan;
}

// PyTorch's placement function: fully_shard takes the dimension that tensor parallelism leaves.
int64_t other_dim(const at::Tensor& parameter) {
  const auto placement = modules::layout_of(parameter).layout.placements()[0];
  return placement.dim() ? parameter.dim() - 1 - *placement.dim() : 0;
}

std::vector<std::shared_ptr<fsdp::Sharded>> shard(Transformer& model, Mesh& mesh,
                                                  const std::vector<std::string>& dims,
                                                  const fsdp::Options& options) {
  std::vector<std::shared_ptr<fsdp::Sharded>> units;
  for (const auto& block : model.blocks)
    units.push_back(fsdp::fully_shard(*block, mesh, dims, options));
  units.push_back(fsdp::fully_shard(model, mesh, dims, options));
  return units;
}

struct Variant {
  bool different_dims, sequence, tied;
};
constexpr Variant kVariants[] = {{false, true, true},   {true, true, true},   {false, true, false},
                                 {true, true, false},   {false, false, true}, {true, false, true},
                                 {false, false, false}, {true, false, false}};

fsdp::Options options_of(const Variant& variant) {
  fsdp::Options options;
  if (variant.different_dims) options.shard_placement_fn = other_dim;
  return options;
}

std::string text_of(const Variant& variant) {
  return std::string(variant.different_dims ? "two dimensions" : "dimension 0") +
         (variant.sequence ? ", sequence parallel" : "") + (variant.tied ? ", tied" : "");
}

// test_train_parity_2d_transformer, whose model is sequence-parallel and tied, and other variants.
TEST(Transformer, test_2d_transformer) {
  for (const Variant& variant : kVariants) {
    SCOPED_TRACE(text_of(variant));
    on_ranks(4, [&](Rank& self) {
      Mesh mesh(*self.world, {{"dp", 2}, {"tp", 2}});
      const auto plain = std::make_shared<Transformer>(3, variant.tied),
                 module = std::make_shared<Transformer>(3, variant.tied);
      const auto tp = parallelize(*module, plan_of(variant.sequence), mesh, "tp");
      const auto units = shard(*module, mesh, {"dp"}, options_of(variant));
      EXPECT_EQ(module->output->weight.is_same(module->tokens->weight), variant.tied);
      expect_whole(*plain, *module, " at first");
      const auto plain_optimizer = tests::adam_w(*plain), optimizer = tests::adam_w(*module);
      const comms::BackendPtr copies = mesh.group({"dp"});
      for (int iteration = 0; iteration < 5; ++iteration) {
        plain_optimizer->zero_grad();
        optimizer->zero_grad();
        const at::Tensor input = tests::random_tokens(
            {2, kTokens}, kVocabulary, tests::data_seed(iteration, copies->getRank()));
        const at::Tensor expected = plain->forward(input).pow(2).sum();
        const at::Tensor loss = modules::forward(module, input).pow(2).sum();
        EXPECT_TRUE(at::allclose(expected, loss, 1e-9)) << iteration;
        expected.backward();
        loss.backward();
        tests::average_grads(*plain, *copies);
        const std::string when = " after backward " + std::to_string(iteration);
        expect_parts(*plain, *module, when);  // the gradient of "positions" is split, too
        expect_whole(*plain, *module, when);
        plain_optimizer->step();
        optimizer->step();
      }
      expect_whole(*plain, *module, " at the end");
    });
  }
}

// Each matrix is sharded along two dimensions, and the whole one is the original.
TEST(Transformer, test_2d_transformer_shard_diff_dim) {
  for (const Variant& variant : kVariants) {
    if (!variant.different_dims) continue;
    SCOPED_TRACE(text_of(variant));
    on_ranks(4, [&](Rank& self) {
      Mesh mesh(*self.world, {{"dp", 2}, {"tp", 2}});
      const auto plain = std::make_shared<Transformer>(3, variant.tied),
                 module = std::make_shared<Transformer>(3, variant.tied);
      const auto tp = parallelize(*module, plan_of(variant.sequence), mesh, "tp");
      const auto units = shard(*module, mesh, {"dp"}, options_of(variant));
      const auto whole = plain->named_parameters();
      int matrices = 0;
      for (const auto& named : module->named_parameters()) {
        const at::Tensor& parameter = named.value();
        const layout::Layout layout = modules::layout_of(parameter).layout;
        const bool is_used = !variant.tied || named.key() != "output.weight";
        if (parameter.dim() == 2 && is_used) {
          ++matrices;
          const bool by_rows = layout.placements().back() == TensorPlacement::shard(0);
          EXPECT_EQ(layout.text(),
                    c10::str("[", whole[named.key()].size(0), ", ", whole[named.key()].size(1),
                             "] dp_replicate=1:replicate dp_shard=2:shard(", by_rows ? 1 : 0,
                             ") tp=2:shard(", by_rows ? 0 : 1, ")"))
              << named.key();
          EXPECT_EQ(parameter.numel() * 4, whole[named.key()].numel()) << named.key();
        }
        EXPECT_TRUE(at::equal(modules::full_tensor(parameter), whole[named.key()])) << named.key();
      }
      EXPECT_EQ(matrices, 3 * 6 + (variant.tied ? 2 : 3));
    });
  }
}

// A block communicates twice in forward and twice in backward: whole activations, or, with sequence
// parallelism, each time a gather and a reduce-scatter of them. Besides, the gradients of norms are
// summed. Queries, keys and values share one collective.
TEST(Transformer, CollectivesOfABlock) {
  constexpr int64_t kBatch = 3, kBlocks = 2;
  constexpr int64_t kWhole = kBatch * kTokens * kDim * 8;  // bytes
  for (const bool sequence : {false, true}) {
    for (const int ranks : {1, 2, 4}) {
      on_ranks(ranks, [&](Rank& self) {
        comms::World recorded = self.world->wrapped(
            [&](comms::BackendPtr backend) { return comms::record(backend, self.log); });
        Mesh mesh(recorded, {{"tp", ranks}});
        const auto model = std::make_shared<Transformer>(kBlocks);
        const auto tp = parallelize(*model, plan_of(sequence), mesh, "tp");
        const int64_t tokens = sequence ? kTokens / ranks : kTokens;
        const at::Tensor input = tests::random_input({kBatch, tokens, kDim}, 1).requires_grad_();
        const auto expect_calls = [&](int64_t norms) {
          const int64_t each = ranks == 1 ? 0 : 2 * kBlocks;
          EXPECT_EQ(self.log->count("allreduce"), sequence ? norms : each);
          EXPECT_EQ(self.log->bytes("allreduce"), sequence ? norms * kDim * 8 : each * kWhole);
          EXPECT_EQ(self.log->count("_allgather_base"), sequence ? each : 0);
          EXPECT_EQ(self.log->bytes("_allgather_base"), sequence ? each * kWhole : 0);
          EXPECT_EQ(self.log->count("_reduce_scatter_base"), sequence ? each : 0);
          EXPECT_EQ(self.log->bytes("_reduce_scatter_base"), sequence ? each * kWhole / ranks : 0);
          self.log->clear();
        };
        self.log->clear();
        at::Tensor x = input;
        for (const auto& block : model->blocks) x = modules::forward(block, x);
        expect_calls(0);
        x.sum().backward();
        expect_calls(ranks == 1 ? 0 : 4 * kBlocks);  // two norms with a weight and a bias
      });
    }
  }
}

// The norm over all parameters, and clipped gradients, are those of one process. A parameter that
// some ranks have alike counts once.
void expect_clipped(const std::vector<layout::MeshDim>& dims,
                    const std::vector<std::string>& data_parallel, bool sequence,
                    bool is_sharded = true) {
  int ranks = 1;
  for (const layout::MeshDim& dim : dims) ranks *= dim.size;
  for (const double norm_type : {2.0, 1.0, 3.0, std::numeric_limits<double>::infinity()}) {
    on_ranks(ranks, [&](Rank& self) {
      comms::World recorded = self.world->wrapped(
          [&](comms::BackendPtr backend) { return comms::record(backend, self.log); });
      Mesh mesh(recorded, dims);
      const auto plain = std::make_shared<Transformer>(2),
                 module = std::make_shared<Transformer>(2);
      const auto tp = parallelize(*module, plan_of(sequence), mesh, "tp");
      const std::shared_ptr<void> units =
          is_sharded ? std::make_shared<std::vector<std::shared_ptr<fsdp::Sharded>>>(
                           shard(*module, mesh, data_parallel, {}))
                     : std::shared_ptr<void>(ddp::replicate(*module, mesh, data_parallel));
      const comms::BackendPtr copies = mesh.group(data_parallel);
      std::vector<std::string> all = data_parallel;
      all.emplace_back("tp");
      const comms::BackendPtr everyone = mesh.group(all);
      for (int iteration = 0; iteration < 10; ++iteration) {
        plain->zero_grad();
        module->zero_grad();
        const at::Tensor input = tests::random_tokens(
            {3, kTokens}, kVocabulary, tests::data_seed(iteration, copies->getRank()));
        plain->forward(input).pow(2).sum().backward();
        modules::forward(module, input).pow(2).sum().backward();
        tests::average_grads(*plain, *copies);
        std::vector<at::Tensor> grads;
        for (const at::Tensor& parameter : plain->parameters())
          grads.push_back(parameter.grad().reshape(-1));
        const double expected = at::cat(grads).norm(norm_type).item<double>();
        EXPECT_GT(expected, 1);
        self.log->clear();
        const at::Tensor norm = modules::clip_grad_norm_(
            modules::grads_to_clip(module->parameters()), *everyone, 1, norm_type);
        EXPECT_EQ(self.log->count("allreduce"), 1);
        EXPECT_EQ(self.log->calls().size(), 1u);
        EXPECT_NEAR(norm.item<double>(), expected, 1e-9 * expected);
        for (const at::Tensor& parameter : plain->parameters())
          parameter.grad().mul_(1 / (expected + 1e-6));
        expect_whole(*plain, *module, " after clipping");
      }
    });
  }
}

TEST(Transformer, test_clip_grad_norm_2d) {
  for (const bool sequence : {true, false})
    expect_clipped({{"dp", 2}, {"tp", 2}}, {"dp"}, sequence);
}

TEST(Transformer, test_clip_grad_norm_3d) {
  for (const bool sequence : {true, false}) {
    expect_clipped({{"dp_replicate", 2}, {"dp_shard", 2}, {"tp", 2}}, {"dp_replicate", "dp_shard"},
                   sequence);
  }
}

// Replicas: what tp splits counts once per tp rank, everything else once.
TEST(Transformer, ClipGradNormOfReplicas) {
  for (const bool sequence : {true, false})
    expect_clipped({{"dp_replicate", 2}, {"tp", 2}}, {"dp_replicate"}, sequence, false);
}

}  // namespace
}  // namespace pipewright::tp
