#include "tests/training/modules.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "executor/checkpoint.h"
#include "fsdp/fully_shard.h"

namespace pipewright::tests {
namespace {

namespace nn = torch::nn;

ModulePtr drawn(ModulePtr module, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const torch::NoGradGuard no_grad;
  for (at::Tensor& weight : module->parameters()) {
    if (weight.dim() > 1)
      weight.normal_(0, 1 / std::sqrt(static_cast<double>(weight.size(-1))), generator);
    else
      weight.uniform_(0.5, 1, generator);
  }
  module->to(at::kDouble);
  return module;
}

struct Linears : TestModule {
  explicit Linears(const std::vector<std::pair<int64_t, int64_t>>& shapes) {
    for (const auto& [in, out] : shapes) {
      layers.push_back(
          register_module("layer" + std::to_string(layers.size()), nn::Linear(in, out)));
    }
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = input;
    for (size_t i = 0; i < layers.size(); ++i) x = layers[i]->forward(i ? at::relu(x) : x);
    return x;
  }
  std::vector<nn::Linear> layers;
};

struct Mlp : TestModule {
  Mlp(int64_t dim, int64_t multiplier)
      : in_proj(register_module("in_proj", nn::Linear(dim, multiplier * dim))),
        out_proj(register_module("out_proj", nn::Linear(multiplier * dim, dim))) {}
  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor hidden = at::relu(fsdp::forward(in_proj, input));
    return at::relu(fsdp::forward(out_proj, hidden));
  }
  nn::Linear in_proj, out_proj;
};

struct Mlps : TestModule {
  Mlps(int64_t dim, int count) : first(register_module("first", nn::Linear(dim, dim))) {
    for (int i = 0; i < count; ++i)
      mlps.push_back(register_module("mlp" + std::to_string(i), std::make_shared<Mlp>(dim, 4)));
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = first(input);
    for (const auto& mlp : mlps) x = fsdp::forward(mlp, x);
    return x;
  }
  std::vector<std::shared_ptr<nn::Module>> parts() override { return {mlps.begin(), mlps.end()}; }
  nn::Linear first;
  std::vector<std::shared_ptr<Mlp>> mlps;
};

struct Repeated : TestModule {
  Repeated()
      : inner(register_module("inner", nn::Linear(4, 4))),
        outer(register_module("outer", nn::Linear(4, 5))) {}
  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor once = at::relu(fsdp::forward(inner, input));
    return outer(at::relu(fsdp::forward(inner, once)));
  }
  std::vector<std::shared_ptr<nn::Module>> parts() override { return {inner.ptr()}; }
  nn::Linear inner, outer;
};

struct Block : nn::Module {
  Block(int64_t dim, int64_t its_heads)
      : heads(its_heads),
        attention_norm(
            register_module("attention_norm", nn::LayerNorm(nn::LayerNormOptions({dim})))),
        qkv(register_module("qkv", nn::Linear(nn::LinearOptions(dim, 3 * dim).bias(false)))),
        mix(register_module("mix", nn::Linear(nn::LinearOptions(dim, dim).bias(false)))),
        ffn_norm(register_module("ffn_norm", nn::LayerNorm(nn::LayerNormOptions({dim})))),
        up(register_module("up", nn::Linear(dim, 4 * dim))),
        down(register_module("down", nn::Linear(4 * dim, dim))) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = qkv(attention_norm(x))
                           .unflatten(-1, {3, heads, x.size(-1) / heads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    const at::Tensor mixed =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    const at::Tensor h = x + mix(mixed.transpose(1, 2).flatten(2));
    return h + down(at::gelu(up(ffn_norm(h))));
  }
  int64_t heads;
  nn::LayerNorm attention_norm;
  nn::Linear qkv, mix;
  nn::LayerNorm ffn_norm;
  nn::Linear up, down;
};

struct Output : nn::Module {
  explicit Output(at::Tensor its_weight)
      : weight(register_parameter("weight", std::move(its_weight))) {}
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight); }
  at::Tensor weight;
};

struct Transformer : TestModule {
  explicit Transformer(const TransformerArgs& its_args)
      : args(its_args),
        tokens(register_module("tokens", nn::Embedding(args.vocabulary, args.dim))),
        positions(register_module("positions", nn::Embedding(args.tokens, args.dim))),
        norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({args.dim})))) {
    // Tied, its weight is one tensor under two names.
    output = register_module(
        "output", std::make_shared<Output>(args.tied ? tokens->weight
                                                     : at::empty({args.vocabulary, args.dim})));
    for (int layer = 0; layer < args.layers; ++layer) {
      blocks.push_back(register_module("block" + std::to_string(layer),
                                       std::make_shared<Block>(args.dim, args.heads)));
    }
  }
  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor places = at::arange(input.size(1), input.options());
    at::Tensor x = fsdp::forward(tokens, input) + fsdp::forward(positions, places);
    for (const auto& block : blocks) {
      const auto run = [block](const std::vector<at::Tensor>& in) {
        return std::vector{fsdp::forward(block, in[0])};
      };
      const auto run_inside = [block](const std::vector<at::Tensor>& in) {
        return std::vector{executor::checkpoint(block, in[0])};
      };
      if (args.checkpointed_inside)
        x = fsdp::call(*block, run_inside, {x})[0];
      else
        x = args.checkpointed ? executor::checkpoint(run, {x})[0] : run({x})[0];
    }
    return fsdp::forward(output, fsdp::forward(norm, x));
  }
  std::vector<std::shared_ptr<nn::Module>> parts() override {
    return {blocks.begin(), blocks.end()};
  }
  const TransformerArgs args;
  nn::Embedding tokens, positions;
  nn::LayerNorm norm;
  std::shared_ptr<Output> output;
  std::vector<std::shared_ptr<Block>> blocks;
};

bool close(const at::Tensor& want, const at::Tensor& got) {
  return want.sizes() == got.sizes() && at::allclose(got, want, 1e-9, 1e-11);
}

}  // namespace

ModulePtr make_two_linears(std::vector<std::pair<int64_t, int64_t>> shapes, uint64_t seed) {
  return drawn(std::make_shared<Linears>(shapes), seed);
}
ModulePtr make_mlp(int64_t dim, int64_t multiplier, uint64_t seed) {
  return drawn(std::make_shared<Mlp>(dim, multiplier), seed);
}
ModulePtr make_mlps(int64_t dim, int mlps, uint64_t seed) {
  return drawn(std::make_shared<Mlps>(dim, mlps), seed);
}
ModulePtr make_repeated(uint64_t seed) { return drawn(std::make_shared<Repeated>(), seed); }
ModulePtr make_transformer(const TransformerArgs& args, uint64_t seed) {
  return drawn(std::make_shared<Transformer>(args), seed);
}

at::Tensor random_input(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble));
}
at::Tensor random_tokens(at::IntArrayRef sizes, int64_t vocabulary, uint64_t seed) {
  return at::randint(vocabulary, sizes, at::detail::createCPUGenerator(seed),
                     at::TensorOptions(at::kLong));
}

void average_grads(torch::nn::Module& module, c10d::Backend& group) {
  for (const at::Tensor& weight : module.parameters()) {
    if (!weight.grad().defined()) continue;
    std::vector<at::Tensor> grads = {weight.grad()};
    group.allreduce(grads)->wait();
    grads[0].div_(group.getSize());
  }
}

std::string difference(const torch::nn::Module& want, const torch::nn::Module& got) {
  const auto left = want.named_parameters(), right = got.named_parameters();
  if (left.size() != right.size()) return "different numbers of parameters";
  for (size_t i = 0; i < left.size(); ++i) {
    const std::string& name = left[i].key();
    if (name != right[i].key()) return name + " is " + right[i].key();
    if (!close(left[i].value(), right[i].value())) return name + " differs";
    const at::Tensor &one = left[i].value().grad(), &other = right[i].value().grad();
    if (one.defined() != other.defined()) return "one gradient of " + name + " is not defined";
    if (one.defined() && !close(one, other)) return "the gradient of " + name + " differs";
  }
  return "";
}

}  // namespace pipewright::tests
