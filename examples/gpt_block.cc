#include "examples/gpt_block.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

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

at::Tensor RotaryEmbedding::rotated(const at::Tensor& x) {
  const int64_t half = x.size(-1) / 2;
  const std::vector<int64_t> sizes = {x.size(-2), half};
  if (!cos_.defined() || cos_.sizes() != at::IntArrayRef(sizes) ||
      cos_.scalar_type() != x.scalar_type() || cos_.device() != x.device()) {
    const c10::InferenceMode usual(false);  // what an evaluation makes, a later backward may need
    const auto fp32 = x.options().dtype(at::kFloat);
    const at::Tensor frequencies = at::pow(10000.0, at::arange(half, fp32) / -half);
    const at::Tensor angles = at::outer(at::arange(x.size(-2), fp32), frequencies);
    cos_ = angles.cos().to(x.dtype());
    sin_ = angles.sin().to(x.dtype());
  }
  const at::Tensor first = x.narrow(-1, 0, half), second = x.narrow(-1, half, half);
  return at::cat({first * cos_ - second * sin_, second * cos_ + first * sin_}, -1);
}

Block::Block(int64_t dim, NormKind kind, bool rope)
    : attention_norm(register_module("attention_norm", std::make_shared<Norm>(kind, dim))),
      mlp_norm(register_module("mlp_norm", std::make_shared<Norm>(kind, dim))),
      qkv(register_module("qkv", nn::Linear(dim, 3 * dim))),
      mix(register_module("mix", nn::Linear(dim, dim))),
      up(register_module("up", nn::Linear(dim, 4 * dim))),
      down(register_module("down", nn::Linear(4 * dim, dim))),
      rotates(rope) {}

at::Tensor Block::forward(const at::Tensor& x) {
  // From [batch, context, heads, 3, head_dim] to three tensors [batch, heads, context, head_dim].
  auto parts = modules::forward(qkv, modules::forward(attention_norm, x))
                   .unflatten(-1, {-1, 3, kHeadDim})
                   .permute({3, 0, 2, 1, 4})
                   .unbind(0);
  if (rotates) {
    for (const size_t part : {0, 1}) parts[part] = rotary_.rotated(parts[part]);
  }
  const at::Tensor mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0,
                                                            /*is_causal=*/true);
  const at::Tensor h = x + modules::forward(mix, mixed.transpose(1, 2).flatten(2));
  const at::Tensor wide = modules::forward(up, modules::forward(mlp_norm, h));
  return h + modules::forward(down, at::gelu(wide));
}

}  // namespace pipewright::examples
