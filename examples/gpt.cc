#include "examples/gpt.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "pipewright/modules/forward.h"
#include "pipewright/tp/cross_entropy.h"

namespace pipewright::examples {
namespace {

namespace nn = torch::nn;

// Initializes the weights of one layer. Each layer has its own generator.
void init_weights(nn::Module& layer, uint64_t seed, int64_t index, double deviation) {
  at::Generator generator =
      at::detail::createCPUGenerator(seed * 1000003 + static_cast<uint64_t>(index));
  const torch::NoGradGuard no_grad;
  for (auto& named : layer.named_parameters()) {
    at::Tensor& weight = named.value();
    if (weight.dim() >= 2)
      weight.normal_(0, deviation, generator);
    else if (named.key().ends_with("bias"))
      weight.zero_();
    else
      weight.fill_(1);
  }
}

struct Block : nn::Module {
  explicit Block(int64_t dim)
      : attention_norm(register_module("attention_norm", norm(dim))),
        qkv(register_module("qkv", nn::Linear(dim, 3 * dim))),
        mix(register_module("mix", nn::Linear(dim, dim))),
        mlp_norm(register_module("mlp_norm", norm(dim))),
        up(register_module("up", nn::Linear(dim, 4 * dim))),
        down(register_module("down", nn::Linear(4 * dim, dim))) {}

  static nn::LayerNorm norm(int64_t dim) { return nn::LayerNorm(nn::LayerNormOptions({dim})); }

  at::Tensor forward(const at::Tensor& x) {
    // From [batch, context, heads, 3, head_dim] to three tensors [batch, heads, context, head_dim].
    // With tensor parallelism these are this rank's heads.
    const auto parts = modules::forward(qkv, modules::forward(attention_norm, x))
                           .unflatten(-1, {-1, 3, kHeadDim})
                           .permute({3, 0, 2, 1, 4})
                           .unbind(0);
    const at::Tensor mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0,
                                                              /*is_causal=*/true);
    const at::Tensor h = x + modules::forward(mix, mixed.transpose(1, 2).flatten(2));
    const at::Tensor wide = modules::forward(up, modules::forward(mlp_norm, h));
    return h + modules::forward(down, at::gelu(wide));
  }

  nn::LayerNorm attention_norm;
  nn::Linear qkv, mix;
  nn::LayerNorm mlp_norm;
  nn::Linear up, down;
};

class Gpt final : public GptStage {
 public:
  Gpt(const GptConfig& config, int stage, int num_stages) : tie_(config.tie) {
    // Layer indices: token embedding 0, blocks 1 to L, output layer L + 1, position embedding L
    // + 2.
    const double deviation = 1 / std::sqrt(static_cast<double>(config.dim));
    if (stage == 0) {
      tokens_ = register_module("tokens", nn::Embedding(kVocabulary, config.dim));
      positions_ = register_module("positions", nn::Embedding(config.context, config.dim));
      init_weights(*tokens_, config.seed, 0, deviation);
      init_weights(*positions_, config.seed, config.layers + 2, deviation);
    }
    const int64_t begin = config.layers * stage / num_stages;
    const int64_t end = config.layers * (stage + 1) / num_stages;
    for (int64_t layer = begin; layer < end; ++layer) {
      blocks_.push_back(
          register_module("block" + std::to_string(layer), std::make_shared<Block>(config.dim)));
      init_weights(*blocks_.back(), config.seed, 1 + layer, deviation / std::sqrt(2.0));
    }
    if (stage == num_stages - 1) {
      norm_ = register_module("norm", Block::norm(config.dim));
      output_ = register_module(
          "output", nn::Linear(nn::LinearOptions(config.dim, kVocabulary).bias(!config.tie)));
      init_weights(*output_, config.seed, config.tie ? 0 : config.layers + 1, deviation);
    }
  }

  at::Tensor forward(at::Tensor input) override {
    at::Tensor x = std::move(input);
    if (tokens_) {
      const at::Tensor places = at::arange(x.size(1), x.options());
      x = modules::forward(tokens_, x) + modules::forward(positions_, places);
    }
    for (const auto& block : blocks_) x = modules::forward(block, x);
    return output_ ? modules::forward(output_, modules::forward(norm_, x)) : x;
  }
  std::vector<std::shared_ptr<nn::Module>> blocks() const override {
    return {blocks_.begin(), blocks_.end()};
  }
  tp::Plan plan(bool sequence_parallel) const override {
    using comms::TensorPlacement;
    const TensorPlacement between =  // of the activations between layers
        sequence_parallel ? TensorPlacement::shard(1) : TensorPlacement::replicate();
    const tp::Style columns = tp::colwise_parallel({.input = between});
    const tp::Style rows = tp::rowwise_parallel({.output = between});
    tp::Plan plan;
    if (tokens_) plan.emplace_back("tokens", rows);
    if (!blocks_.empty()) {
      for (const char* layer : {"qkv", "up"})
        plan.emplace_back(std::string("block*.") + layer, columns);
      for (const char* layer : {"mix", "down"})
        plan.emplace_back(std::string("block*.") + layer, rows);
    }
    if (output_) plan.emplace_back("output", columns);
    if (!sequence_parallel) return plan;
    // Position embeddings are [context, dim].
    if (tokens_)
      plan.emplace_back("positions", tp::rowwise_parallel({.output = TensorPlacement::shard(0)}));
    if (!blocks_.empty()) plan.emplace_back("block*.*_norm", tp::sequence_parallel());
    if (output_) plan.emplace_back("norm", tp::sequence_parallel());
    return plan;
  }
  std::vector<at::Tensor> token_weights() const override {
    std::vector<at::Tensor> weights;
    if (tie_ && tokens_) weights.push_back(tokens_->weight);
    if (tie_ && output_) weights.push_back(output_->weight);
    return weights;
  }

 private:
  const bool tie_;
  nn::Embedding tokens_{nullptr}, positions_{nullptr};
  std::vector<std::shared_ptr<Block>> blocks_;
  nn::LayerNorm norm_{nullptr};
  nn::Linear output_{nullptr};
};

}  // namespace

std::shared_ptr<GptStage> make_gpt_stage(const GptConfig& config, int stage, int num_stages) {
  return std::make_shared<Gpt>(config, stage, num_stages);
}

at::Tensor gpt_loss(const at::Tensor& logits, const at::Tensor& targets,
                    const comms::BackendPtr& tp) {
  if (tp) return tp::cross_entropy(logits, targets, kVocabulary, tp);
  return at::cross_entropy_loss(logits.flatten(0, 1).to(at::kFloat), targets.flatten());
}

}  // namespace pipewright::examples
