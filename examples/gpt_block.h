#ifndef PIPEWRIGHT_EXAMPLES_GPT_BLOCK_H_
#define PIPEWRIGHT_EXAMPLES_GPT_BLOCK_H_

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <memory>

#include "pipewright/executor/slice_cache.h"

// A transformer block of the GPT in gpt.h.

namespace pipewright::examples {

inline constexpr int64_t kHeadDim = 16;

enum class NormKind {
  kLayer,  // LayerNorm, with a bias
  kRms     // Zhang, Sennrich: "Root Mean Square Layer Normalization", 2019
};

// Normalizes the last dimension, of size `dim`.
struct Norm : torch::nn::Module {
  Norm(NormKind kind, int64_t dim);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight, bias;  // bias: undefined for kRms
};

// Rotary position embedding (Su et al., "RoFormer", 2021) of queries or keys x, [batch, heads,
// context, head dim], of positions from `first` on: rotates the pair of elements i and i + head dim
// / 2 of position p by p * 10000^(-2i / head dim), as Llama does. A product of a query and a key
// then depends on their distance alone. The head dimension must be even.
//
// Keeps the cosines and sines of the positions so far. For one thread at a time.
class RotaryEmbedding {
 public:
  at::Tensor rotated(const at::Tensor& x, int64_t first = 0);

 private:
  at::Tensor cos_, sin_;  // [context, half the head dim]
};

// Causal attention and an MLP, each after a norm and with a residual connection: [batch, context,
// dim] to the same. With tensor parallelism (plan() of gpt.h), attention runs on this rank's heads.
// If the context is cut into slices, each attends to those before it through `cache`.
struct Block : torch::nn::Module {
  Block(int64_t dim, NormKind kind, bool rope, std::shared_ptr<executor::SliceCache> cache);
  at::Tensor forward(const at::Tensor& x);

  std::shared_ptr<Norm> attention_norm, mlp_norm;
  torch::nn::Linear qkv, mix, up, down;
  const bool rotates;  // queries and keys

 private:
  RotaryEmbedding rotary_;
  const std::shared_ptr<executor::SliceCache> cache_;
  const size_t keys_, values_;  // in the cache
};

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_GPT_BLOCK_H_
