// Measures forward and backward of a tensor-parallel model over Gloo, and of the same compute
// without communication: a plain model whose layers have the sizes of one rank's parts.
//
//   bazel build //cli:pipewright //bench:tensor_parallel_bench
//   bazel-bin/cli/pipewright launch -n 2 -- bazel-bin/bench/tensor_parallel_bench WHAT DIM LAYERS
//   STEPS
//
// WHAT is mlp or block: LAYERS MLPs, or transformer blocks, of dimension DIM, on 4 sequences of 64
// tokens. The two models run in turn, one step each, and every other time in the other order, so
// that both see the same machine. Rank 0 prints over STEPS steps of each, after half as many of
// warm-up, in microseconds: the medians of both times, and the quartiles of their differences,
// which are the overhead of communication if they are above the noise.
// bench/pytorch_tensor_parallel.py compares them with PyTorch's.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "pipewright/comms/gloo/gloo.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/modules/forward.h"
#include "pipewright/tp/parallelize.h"

namespace pipewright::bench {
namespace {

namespace nn = torch::nn;

constexpr int64_t kHead = 16, kTokens = 64, kBatch = 4;

struct Mlp : nn::Module {
  Mlp(int64_t dim, int64_t parts)
      : up(register_module("up", nn::Linear(dim, 4 * dim / parts))),
        down(register_module("down", nn::Linear(4 * dim / parts, dim))) {}
  at::Tensor forward(const at::Tensor& x) {
    return modules::forward(down, at::gelu(modules::forward(up, x)));
  }
  nn::Linear up, down;
};

struct Attention : nn::Module {
  Attention(int64_t dim, int64_t parts)
      : wq(register_module("wq", nn::Linear(dim, dim / parts))),
        wk(register_module("wk", nn::Linear(dim, dim / parts))),
        wv(register_module("wv", nn::Linear(dim, dim / parts))),
        wo(register_module("wo", nn::Linear(dim / parts, dim))) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto heads = [&](const nn::Linear& projection) {
      return modules::forward(projection, x).unflatten(-1, {-1, kHead}).transpose(1, 2);
    };
    const at::Tensor mixed =
        at::scaled_dot_product_attention(heads(wq), heads(wk), heads(wv), {}, 0.0, true);
    return modules::forward(wo, mixed.transpose(1, 2).flatten(2));
  }
  nn::Linear wq, wk, wv, wo;
};

struct Block : nn::Module {
  Block(int64_t dim, int64_t parts)
      : attention_norm(
            register_module("attention_norm", nn::LayerNorm(nn::LayerNormOptions({dim})))),
        mlp_norm(register_module("mlp_norm", nn::LayerNorm(nn::LayerNormOptions({dim})))),
        attention(register_module("attention", std::make_shared<Attention>(dim, parts))),
        mlp(register_module("mlp", std::make_shared<Mlp>(dim, parts))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = x + modules::forward(attention, attention_norm(x));
    return h + modules::forward(mlp, mlp_norm(h));
  }
  nn::LayerNorm attention_norm, mlp_norm;
  std::shared_ptr<Attention> attention;
  std::shared_ptr<Mlp> mlp;
};

template <typename Layer>
struct Stack : nn::Module {
  Stack(int64_t dim, int64_t count, int64_t parts) {
    for (int64_t i = 0; i < count; ++i) {
      layers.push_back(register_module(std::to_string(i), std::make_shared<Layer>(dim, parts)));
    }
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = input;
    for (const auto& layer : layers) x = modules::forward(layer, x);
    return x;
  }
  std::vector<std::shared_ptr<Layer>> layers;
};

double quantile(std::vector<double> values, double fraction) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(fraction * static_cast<double>(values.size() - 1))];
}

// One step, which the ranks begin together.
template <typename Module>
double step_us(Module& module, const at::Tensor& input, c10d::Backend& group) {
  group.barrier()->wait();
  const auto start = std::chrono::steady_clock::now();
  module.zero_grad();
  module.forward(input).sum().backward();
  const auto end = std::chrono::steady_clock::now();
  return std::chrono::duration<double, std::micro>(end - start).count();
}

template <typename Layer>
int run(const tp::Plan& plan, int64_t dim, int64_t layers, int64_t steps) {
  at::set_num_threads(1);
  comms::World world = comms::gloo_world(comms::read_environment());
  comms::Mesh mesh(world, {{"tp", world.size()}});
  const comms::BackendPtr group = mesh.group({"tp"});
  Stack<Layer> split(dim, layers, 1), part(dim, layers, world.size());
  const auto tp = tp::parallelize(split, plan, mesh, "tp");
  const at::Tensor input = at::randn({kBatch, kTokens, dim});
  std::vector<double> split_times, part_times, differences;
  for (int64_t step = -steps / 2; step < steps; ++step) {
    const bool is_first = step % 2 == 0;
    double with = is_first ? step_us(split, input, *group) : 0;
    const double without = step_us(part, input, *group);
    if (!is_first) with = step_us(split, input, *group);
    if (step < 0) continue;
    split_times.push_back(with);
    part_times.push_back(without);
    differences.push_back(with - without);
  }
  if (world.rank() == 0) {
    std::printf("step_us %.1f compute_us %.1f overhead_us %.1f %.1f %.1f\n",
                quantile(split_times, 0.5), quantile(part_times, 0.5), quantile(differences, 0.25),
                quantile(differences, 0.5), quantile(differences, 0.75));
  }
  return 0;
}

int run(const std::string& what, int64_t dim, int64_t layers, int64_t steps) {
  const tp::Style up = tp::colwise_parallel(), down = tp::rowwise_parallel();
  if (what == "mlp") return run<Mlp>({{"*.up", up}, {"*.down", down}}, dim, layers, steps);
  return run<Block>({{"*.attention", tp::prepare_input()},
                     {"*.attention.w[qkv]", tp::colwise_parallel({.input_is_prepared = true})},
                     {"*.attention.wo", down},
                     {"*.mlp.up", up},
                     {"*.mlp.down", down}},
                    dim, layers, steps);
}

}  // namespace
}  // namespace pipewright::bench

int main(int argc, char** argv) {
  const std::string what = argc == 5 ? argv[1] : "";
  if (what != "mlp" && what != "block") {
    std::fprintf(stderr, "usage: tensor_parallel_bench mlp|block DIM LAYERS STEPS\n");
    return 2;
  }
  return pipewright::bench::run(what, std::atoll(argv[2]), std::atoll(argv[3]),
                                std::atoll(argv[4]));
}
