#ifndef PIPEWRIGHT_TESTS_TP_SMALL_MODEL_H_
#define PIPEWRIGHT_TESTS_TP_SMALL_MODEL_H_

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

namespace pipewright::tp {

// A module of each kind that a plan may name, for tests of parallelize().
struct SmallModel : torch::nn::Module {
  SmallModel() {
    up = register_module("up", torch::nn::Linear(4, 6));
    down = register_module("down", torch::nn::Linear(6, 4));
    tokens = register_module("tokens", torch::nn::Embedding(8, 4));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
  }
  torch::nn::Linear up{nullptr}, down{nullptr};
  torch::nn::Embedding tokens{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};

}  // namespace pipewright::tp

#endif  // PIPEWRIGHT_TESTS_TP_SMALL_MODEL_H_
