#include "examples/gpt.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <numeric>

#include "pipewright/autograd/checkpoint.h"
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

class Gpt final : public GptStage {
 public:
  Gpt(const GptConfig& config, int stage, int num_stages,
      std::shared_ptr<executor::SliceCache> slices)
      : config_(config),
        keeps_(config.activation_checkpointing == Checkpointing::kSelective
                   ? autograd::KeepPolicy::matrix_products()
                   : autograd::KeepPolicy()),
        slices_(std::move(slices)) {
    // Layer indices: token embedding 0, blocks 1 to L, output layer L + 1, position embedding L
    // + 2.
    const double deviation = 1 / std::sqrt(static_cast<double>(config.dim));
    if (stage == 0) {
      tokens_ = register_module("tokens", nn::Embedding(kVocabulary, config.dim));
      init_weights(*tokens_, config.seed, 0, deviation);
      if (!config.rope) {
        positions_ = register_module("positions", nn::Embedding(config.context, config.dim));
        init_weights(*positions_, config.seed, config.layers + 2, deviation);
      }
    }
    const schedule::LayerRange own =
        schedule::layer_ranges(blocks_of_stages(config, num_stages))[static_cast<size_t>(stage)];
    for (int64_t layer = own.first; layer < own.last; ++layer) {
      blocks_.push_back(
          register_module("block" + std::to_string(layer),
                          std::make_shared<Block>(config.dim, config.norm, config.rope, slices_)));
      init_weights(*blocks_.back(), config.seed, 1 + layer, deviation / std::sqrt(2.0));
    }
    if (stage == num_stages - 1) {
      norm_ = register_module("norm", std::make_shared<Norm>(config.norm, config.dim));
      output_ = register_module(
          "output", nn::Linear(nn::LinearOptions(config.dim, kVocabulary).bias(!config.tie)));
      init_weights(*output_, config.seed, config.tie ? 0 : config.layers + 1, deviation);
    }
  }

  at::Tensor forward(at::Tensor input) override {
    at::Tensor x = std::move(input);
    if (tokens_) {
      const int64_t first = slices_ ? slices_->index() * x.size(1) : 0;
      const at::Tensor places = at::arange(first, first + x.size(1), x.options());
      x = modules::forward(tokens_, x);
      if (positions_) x = x + modules::forward(positions_, places);
    }
    for (const auto& block : blocks_) x = call(block, x);
    return output_ ? modules::forward(output_, modules::forward(norm_, x)) : x;
  }
  std::vector<std::shared_ptr<nn::Module>> blocks() const override {
    return {blocks_.begin(), blocks_.end()};
  }
  tp::Plan plan(bool sequence_parallel) const override {
    using layout::TensorPlacement;
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
    if (positions_)
      plan.emplace_back("positions", tp::rowwise_parallel({.output = TensorPlacement::shard(0)}));
    if (!blocks_.empty()) plan.emplace_back("block*.*_norm", tp::sequence_parallel());
    if (output_) plan.emplace_back("norm", tp::sequence_parallel());
    return plan;
  }
  std::vector<at::Tensor> token_weights() const override {
    std::vector<at::Tensor> weights;
    if (config_.tie && tokens_) weights.push_back(tokens_->weight);
    if (config_.tie && output_) weights.push_back(output_->weight);
    return weights;
  }

 private:
  at::Tensor call(const std::shared_ptr<Block>& block, const at::Tensor& x) const {
    if (config_.activation_checkpointing == Checkpointing::kNone) return modules::forward(block, x);
    const auto forward = [block](const std::vector<at::Tensor>& inputs) {
      return std::vector<at::Tensor>{modules::forward(block, inputs[0])};
    };
    return autograd::checkpoint(forward, {x}, keeps_)[0];
  }

  const GptConfig config_;
  const autograd::KeepPolicy keeps_;
  const std::shared_ptr<executor::SliceCache> slices_;  // null if the context is whole
  nn::Embedding tokens_{nullptr}, positions_{nullptr};
  std::vector<std::shared_ptr<Block>> blocks_;
  std::shared_ptr<Norm> norm_;
  nn::Linear output_{nullptr};
};

}  // namespace

schedule::Cut blocks_of_stages(const GptConfig& config, int num_stages) {
  if (!config.blocks.empty()) return config.blocks;
  return schedule::balanced_cut(static_cast<int>(config.layers), num_stages, config.costs);
}

std::shared_ptr<GptStage> make_gpt_stage(const GptConfig& config, int stage, int num_stages,
                                         std::shared_ptr<executor::SliceCache> slices) {
  return std::make_shared<Gpt>(config, stage, num_stages, std::move(slices));
}

at::Tensor gpt_loss(const at::Tensor& logits, const at::Tensor& targets,
                    const comms::BackendPtr& tp) {
  if (tp) return tp::cross_entropy(logits, targets, kVocabulary, tp);
  return at::cross_entropy_loss(logits.flatten(0, 1).to(at::kFloat), targets.flatten());
}

}  // namespace pipewright::examples
