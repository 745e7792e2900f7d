#ifndef PIPEWRIGHT_TESTS_TRAINING_MODULES_H_
#define PIPEWRIGHT_TESTS_TRAINING_MODULES_H_

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <vector>

#include "comms/world.h"

// The modules of PyTorch's tests of FSDP2 and replicate, and training of a plain copy whose
// gradients are averaged by hand, for comparison. All in fp64: sums in another order must not hide
// what is wrong. Their parts are called through fsdp::forward, as fully_shard wants it.

namespace pipewright::tests {

class TestModule : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& input) = 0;
  // What a test wraps apart, bottom-up, the whole left out.
  virtual std::vector<std::shared_ptr<torch::nn::Module>> parts() { return {}; }
};
using ModulePtr = std::shared_ptr<TestModule>;

// Each is the same for the same seed, on every thread.
ModulePtr make_two_linears(std::vector<std::pair<int64_t, int64_t>> shapes, uint64_t seed);
// in_proj, relu, out_proj, relu.
ModulePtr make_mlp(int64_t dim, int64_t multiplier, uint64_t seed);
// A Linear, then MLPs; the MLPs are its parts.
ModulePtr make_mlps(int64_t dim, int mlps, uint64_t seed);
// Linear(4, 4), called twice, and Linear(4, 5); the inner one is its part.
ModulePtr make_repeated(uint64_t seed);
// Token and position embeddings, blocks of attention and FFN, an output layer that may share the
// embedding's weight; the blocks are its parts, and may be checkpointed. Input [batch, tokens].
struct TransformerArgs {
  int layers = 2;
  int64_t vocabulary = 64, tokens = 16, dim = 16, heads = 4;
  bool tied = true, checkpointed = false;
  bool checkpointed_inside = false;  // of the call that fully_shard sees
};
ModulePtr make_transformer(const TransformerArgs& args, uint64_t seed);

at::Tensor random_input(at::IntArrayRef sizes, uint64_t seed);
at::Tensor random_tokens(at::IntArrayRef sizes, int64_t vocabulary, uint64_t seed);

// Averages the gradients of a plain module by hand.
void average_grads(torch::nn::Module& module, c10d::Backend& group);

// The first difference of two modules' parameters and gradients beyond 1e-9; empty if there is
// none.
std::string difference(const torch::nn::Module& want, const torch::nn::Module& got);

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_TRAINING_MODULES_H_
