// The gradients of a model that replicate() has wrapped with mixed precision, on two ranks that are
// threads:
//
//   replicate_worker PARAM_DTYPE REDUCE_DTYPE IN OUT
//
// A dtype is bf16, fp32 or none. IN is a file of floats: the parameters of Linear(8, 8),
// LayerNorm(8), Linear(8, 8), then for each rank two inputs [5, 8]. OUT has the gradients after
// both, in the order of the parameters. replicate_peer.py is the other side.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>

#include "pipewright/comms/threads/threads.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/modules/forward.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::ddp {
namespace {

constexpr int kRanks = 2, kMicrobatches = 2;
constexpr int64_t kRows = 5, kWidth = 8;
constexpr std::array kGroup = {0, 1};

struct Model : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return last(norm(modules::forward(first, x)).relu()); }
  torch::nn::Linear first = register_module("0", torch::nn::Linear(kWidth, kWidth));
  torch::nn::LayerNorm norm =
      register_module("1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  torch::nn::Linear last = register_module("3", torch::nn::Linear(kWidth, kWidth));
};

std::optional<at::ScalarType> dtype_of(const std::string& name) {
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp32") return at::kFloat;
  return std::nullopt;
}

void read_into(std::ifstream& file, at::Tensor tensor) {
  file.read(static_cast<char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
  if (!file) throw std::runtime_error("the input file is too short");
}

int run(char** argv) {
  at::set_num_threads(1);
  const modules::MixedPrecisionPolicy policy = {.param_dtype = dtype_of(argv[1]),
                                                .reduce_dtype = dtype_of(argv[2])};
  std::vector<comms::World> worlds = comms::thread_worlds(kRanks);
  const std::string errors = tests::run_ranks(kRanks, [&](int rank) {
    std::ifstream in(argv[3], std::ios::binary);
    const auto model = std::make_shared<Model>();
    for (const at::Tensor& weight : model->parameters()) read_into(in, weight);
    const at::Tensor inputs = at::empty({kRanks, kMicrobatches, kRows, kWidth});
    read_into(in, inputs);
    const comms::BackendPtr group = worlds[static_cast<size_t>(rank)].make_group("dp", kGroup);
    const auto part = replicate(*model->first, group, {.mixed_precision = policy});
    const auto unit = replicate(*model, group, {.mixed_precision = policy});
    for (int m = 0; m < kMicrobatches; ++m) {
      unit->set_requires_gradient_sync(m == kMicrobatches - 1);
      modules::forward(model, inputs[rank][m]).to(at::kFloat).square().sum().backward();
    }
    if (rank != 0) return;
    std::ofstream out(argv[4], std::ios::binary);
    for (const at::Tensor& weight : model->parameters()) {
      const at::Tensor grad = weight.grad().contiguous();
      out.write(static_cast<const char*>(grad.data_ptr()),
                static_cast<std::streamsize>(grad.nbytes()));
    }
    if (!out) throw std::runtime_error("cannot write the output file");
  });
  if (!errors.empty()) throw std::runtime_error(errors);
  return 0;
}

}  // namespace
}  // namespace pipewright::ddp

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  try {
    return pipewright::ddp::run(argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
