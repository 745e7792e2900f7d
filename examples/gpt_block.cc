#include "examples/gpt_block.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <utility>
#include <vector>

#include "pipewright/modules/forward.h"

namespace pipewright::examples {

namespace nn = torch::nn;

Norm::Norm(NormKind kind, int64_t dim) {
  weight = register_parameter("weight", at::ones({dim}));
  if (kind == NormKind::kLayer) bias = register_parameter("bias", at::zeros({dim}));
}

at::Tensor Norm::forward(const at::Tensor& x) {
  constexpr double kEpsilon = 1e-5;
  const at::IntArrayRef dims = x.sizes().slice(x.dim() - 1);
  return bias.defined() ? at::layer_norm(x, dims, weight, bias, kEpsilon)
                        : at::rms_norm(x, dims, weight, kEpsilon);
}

at::Tensor RotaryEmbedding::rotated(const at::Tensor& x, int64_t first) {
  const int64_t half = x.size(-1) / 2, end = first + x.size(-2);
  if (!cos_.defined() || cos_.size(0) < end || cos_.size(1) != half ||
      cos_.scalar_type() != x.scalar_type() || cos_.device() != x.device()) {
    const c10::InferenceMode usual(false);  // what an evaluation makes, a later backward may need
    const auto fp32 = x.options().dtype(at::kFloat);
    const at::Tensor frequencies = at::pow(10000.0, at::arange(half, fp32) / -half);
    const at::Tensor angles = at::outer(at::arange(end, fp32), frequencies);
    cos_ = angles.cos().to(x.dtype());
    sin_ = angles.sin().to(x.dtype());
  }
  const at::Tensor cos = cos_.slice(0, first, end), sin = sin_.slice(0, first, end);
  const at::Tensor left = x.narrow(-1, 0, half), right = x.narrow(-1, half, half);
  return at::cat({left * cos - right * sin, right * cos + left * sin}, -1);
}

namespace {

// Each query attends to the keys up to its own position; the last query has that of the last key.
at::Tensor causal_attention(const at::Tensor& queries, const at::Tensor& keys,
                            const at::Tensor& values) {
  const int64_t earlier = keys.size(2) - queries.size(2);
  if (earlier == 0)
    return at::scaled_dot_product_attention(queries, keys, values, {}, 0.0, /*is_causal=*/true);
  const at::Tensor mask =
      at::ones({queries.size(2), keys.size(2)}, queries.options().dtype(at::kBool)).tril(earlier);
  return at::scaled_dot_product_attention(queries, keys, values, mask);
}

}  // namespace

Block::Block(int64_t dim, NormKind kind, bool rope, std::shared_ptr<executor::SliceCache> cache)
    : attention_norm(register_module("attention_norm", std::make_shared<Norm>(kind, dim))),
      mlp_norm(register_module("mlp_norm", std::make_shared<Norm>(kind, dim))),
      qkv(register_module("qkv", nn::Linear(dim, 3 * dim))),
      mix(register_module("mix", nn::Linear(dim, dim))),
      up(register_module("up", nn::Linear(dim, 4 * dim))),
      down(register_module("down", nn::Linear(4 * dim, dim))),
      rotates(rope),
      cache_(cache ? std::move(cache) : std::make_shared<executor::SliceCache>()),
      keys_(cache_->add()),
      values_(cache_->add()) {}

at::Tensor Block::forward(const at::Tensor& x) {
  // From [batch, context, heads, 3, head_dim] to three tensors [batch, heads, context, head_dim].
  auto parts = modules::forward(qkv, modules::forward(attention_norm, x))
                   .unflatten(-1, {-1, 3, kHeadDim})
                   .permute({3, 0, 2, 1, 4})
                   .unbind(0);
  if (rotates) {
    const int64_t first = cache_->index() * parts[0].size(2);
    for (const size_t part : {0, 1}) parts[part] = rotary_.rotated(parts[part], first);
  }
  const at::Tensor mixed = causal_attention(parts[0], cache_->extend(keys_, parts[1], 2),
                                            cache_->extend(values_, parts[2], 2));
  const at::Tensor h = x + modules::forward(mix, mixed.transpose(1, 2).flatten(2));
  const at::Tensor wide = modules::forward(up, modules::forward(mlp_norm, h));
  return h + modules::forward(down, at::gelu(wide));
}

}  // namespace pipewright::examples
