#include "tests/support/training/modules.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <utility>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/modules/forward.h"
#include "tests/support/ranks/ground.h"

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
  module->to(here(), at::kDouble);
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
    for (size_t i = 0; i < layers.size(); ++i) x = modules::forward(layers[i], i ? at::relu(x) : x);
    return x;
  }
  std::vector<nn::Linear> layers;
};

struct Mlp : TestModule {
  Mlp(int64_t dim, int64_t multiplier)
      : in_proj(register_module("in_proj", nn::Linear(dim, multiplier * dim))),
        out_proj(register_module("out_proj", nn::Linear(multiplier * dim, dim))) {}
  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor hidden = at::relu(modules::forward(in_proj, input));
    return at::relu(modules::forward(out_proj, hidden));
  }
  nn::Linear in_proj, out_proj;
};

struct Mlps : TestModule {
  Mlps(int64_t dim, int count, bool its_checkpointed)
      : checkpointed(its_checkpointed), first(register_module("first", nn::Linear(dim, dim))) {
    for (int i = 0; i < count; ++i)
      mlps.push_back(register_module("mlp" + std::to_string(i), std::make_shared<Mlp>(dim, 4)));
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = modules::forward(first, input);
    for (const auto& mlp : mlps) {
      const auto part = [mlp](const std::vector<at::Tensor>& in) {
        return std::vector{modules::forward(mlp, in[0])};
      };
      x = (checkpointed ? autograd::checkpoint(part, {x}) : part({x}))[0];
    }
    return x;
  }
  std::vector<std::shared_ptr<nn::Module>> parts() override { return {mlps.begin(), mlps.end()}; }
  bool checkpointed;
  nn::Linear first;
  std::vector<std::shared_ptr<Mlp>> mlps;
};

struct Repeated : TestModule {
  explicit Repeated(bool chained_calls)
      : chained(chained_calls),
        inner(register_module("inner", nn::Linear(4, 4))),
        outer(register_module("outer", nn::Linear(4, 5))) {}
  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor once = modules::forward(inner, input);
    if (!chained) return outer(once + modules::forward(inner, input));
    return outer(at::relu(modules::forward(inner, at::relu(once))));
  }
  std::vector<std::shared_ptr<nn::Module>> parts() override { return {inner.ptr()}; }
  const bool chained;
  nn::Linear inner, outer;
};

struct Vit : nn::Module {
  Vit()
      : patches(register_module("patches", nn::Conv2d(nn::Conv2dOptions(3, 1024, 14).stride(14)))) {
  }
  at::Tensor forward_features(const at::Tensor& images) {
    return patches->forward(images).flatten(2).transpose(1, 2);
  }
  nn::Conv2d patches;
};

struct VitWithHead : TestModule {
  VitWithHead()
      : vit(register_module("vit", std::make_shared<Vit>())),
        head(register_module("head", nn::Linear(1024, 5))) {}
  at::Tensor forward(const at::Tensor& images) override {
    const auto features = [this](const std::vector<at::Tensor>& in) {
      return std::vector{vit->forward_features(in[0])};
    };
    return head(modules::call(*vit, features, {images})[0]);
  }
  std::vector<std::shared_ptr<nn::Module>> parts() override { return {vit}; }
  std::shared_ptr<Vit> vit;
  nn::Linear head;
};

struct Block : nn::Module {
  explicit Block(const TransformerArgs& args)
      : Block(args.dim, args.heads, args.dropout, args.ffn_checkpointed) {}
  Block(int64_t dim, int64_t its_heads, double its_dropout, bool its_ffn_checkpointed)
      : heads(its_heads),
        dropout(its_dropout),
        ffn_checkpointed(its_ffn_checkpointed),
        attention_norm(
            register_module("attention_norm", nn::LayerNorm(nn::LayerNormOptions({dim})))),
        qkv(register_module("qkv", nn::Linear(nn::LinearOptions(dim, 3 * dim).bias(false)))),
        mix(register_module("mix", nn::Linear(nn::LinearOptions(dim, dim).bias(false)))),
        ffn_norm(register_module("ffn_norm", nn::LayerNorm(nn::LayerNormOptions({dim})))),
        up(register_module("up", nn::Linear(dim, 4 * dim))),
        down(register_module("down", nn::Linear(4 * dim, dim))) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto drop = [this](const at::Tensor& of) { return at::dropout(of, dropout, true); };
    const auto parts = qkv(attention_norm(x))
                           .unflatten(-1, {3, heads, x.size(-1) / heads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    const at::Tensor mixed =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    const at::Tensor h = x + drop(mix(mixed.transpose(1, 2).flatten(2)));
    const auto ffn = [this](const std::vector<at::Tensor>& in) {
      return std::vector{down(at::gelu(modules::forward(up, in[0])))};
    };
    const at::Tensor normed = ffn_norm(h);
    return h + drop((ffn_checkpointed ? autograd::checkpoint(ffn, {normed}) : ffn({normed}))[0]);
  }
  int64_t heads;
  double dropout;
  bool ffn_checkpointed;
  nn::LayerNorm attention_norm;
  nn::Linear qkv, mix;
  nn::LayerNorm ffn_norm;
  nn::Linear up, down;
};

struct CheckpointedBlock : nn::Module {
  explicit CheckpointedBlock(std::shared_ptr<Block> its_block)
      : block(register_module(kCheckpointed, std::move(its_block))) {}
  at::Tensor forward(const at::Tensor& x) { return autograd::checkpoint(block, x); }
  std::shared_ptr<Block> block;
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
      const auto block = std::make_shared<Block>(args);
      const std::string name = "block" + std::to_string(layer);
      if (args.checkpointed == Checkpointed::kWrapper)
        wrapped.push_back(register_module(name, std::make_shared<CheckpointedBlock>(block)));
      else
        blocks.push_back(register_module(name, block));
    }
  }
  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor places = at::arange(input.size(1), input.options());
    at::Tensor x = modules::forward(tokens, input) + modules::forward(positions, places);
    for (const auto& block : wrapped) x = modules::forward(block, x);
    for (const auto& block : blocks) {
      const auto around = [block](const std::vector<at::Tensor>& in) {
        return std::vector{modules::forward(block, in[0])};
      };
      const auto inside = [block](const std::vector<at::Tensor>& in) {
        return std::vector{autograd::checkpoint(block, in[0])};
      };
      if (args.checkpointed == Checkpointed::kInside)
        x = modules::call(*block, inside, {x})[0];
      else if (args.checkpointed == Checkpointed::kAround)
        x = autograd::checkpoint(around, {x})[0];
      else
        x = modules::forward(block, x);
    }
    return modules::forward(output, modules::forward(norm, x));
  }
  std::vector<std::shared_ptr<nn::Module>> parts() override {
    if (!wrapped.empty()) return {wrapped.begin(), wrapped.end()};
    return {blocks.begin(), blocks.end()};
  }
  const TransformerArgs args;
  nn::Embedding tokens, positions;
  nn::LayerNorm norm;
  std::shared_ptr<Output> output;
  std::vector<std::shared_ptr<Block>> blocks;               // or
  std::vector<std::shared_ptr<CheckpointedBlock>> wrapped;  // these
};

}  // namespace

ModulePtr make_two_linears(std::vector<std::pair<int64_t, int64_t>> shapes, uint64_t seed) {
  return drawn(std::make_shared<Linears>(shapes), seed);
}
ModulePtr make_mlp(int64_t dim, int64_t multiplier, uint64_t seed) {
  return drawn(std::make_shared<Mlp>(dim, multiplier), seed);
}
ModulePtr make_mlps(int64_t dim, int mlps, uint64_t seed, bool checkpointed) {
  return drawn(std::make_shared<Mlps>(dim, mlps, checkpointed), seed);
}
ModulePtr in_float(ModulePtr module) {
  module->to(at::kFloat);
  return module;
}
ModulePtr make_vit(uint64_t seed) { return drawn(std::make_shared<VitWithHead>(), seed); }
ModulePtr make_repeated(uint64_t seed, bool chained) {
  return drawn(std::make_shared<Repeated>(chained), seed);
}
ModulePtr make_transformer(const TransformerArgs& args, uint64_t seed) {
  return drawn(std::make_shared<Transformer>(args), seed);
}

at::Tensor random_input(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble))
      .to(here());
}
at::Tensor random_tokens(at::IntArrayRef sizes, int64_t vocabulary, uint64_t seed) {
  return at::randint(vocabulary, sizes, at::detail::createCPUGenerator(seed),
                     at::TensorOptions(at::kLong))
      .to(here());
}

std::vector<nn::Module*> modules_at(nn::Module& module, const std::vector<std::string>& paths) {
  const auto all = module.named_modules("", /*include_self=*/false);
  std::vector<nn::Module*> found;
  for (const std::string& path : paths) found.push_back(all[path].get());
  return found;
}

}  // namespace pipewright::tests
