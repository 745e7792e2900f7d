#ifndef PIPEWRIGHT_TESTS_SUPPORT_TRAINING_MODULES_H_
#define PIPEWRIGHT_TESTS_SUPPORT_TRAINING_MODULES_H_

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

// The modules of PyTorch's tests of FSDP2 and replicate. All in fp64: sums in another order must
// not hide what is wrong. Their parts are called through fsdp::forward, as fully_shard wants it.

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
// A Conv2d of patches, whose features come from a method of its own, and a Linear; the former is
// its part, "vit". Input [batch, 3, 224, 224].
ModulePtr make_vit(uint64_t seed);
// Token and position embeddings, blocks of attention and FFN, an output layer that may share the
// embedding's weight; the blocks are its parts. Input [batch, tokens]. PyTorch's ModelArgs, but for
// its dropout of 0.1.
enum class Checkpointed {
  kNot,
  kAround,   // a part of the model that calls the block
  kInside,   // what runs in the block's call, as fully_shard sees it
  kWrapper,  // in a module of its own around the block, which then is the part
};
inline constexpr const char* kCheckpointed = "checkpointed";  // the block in such a module
struct TransformerArgs {
  int layers = 2;
  int64_t vocabulary = 8, tokens = 16, dim = 16, heads = 4;
  bool tied = true;
  Checkpointed checkpointed = Checkpointed::kNot;
  // Draws from the process' generator: for ranks that are processes.
  double dropout = 0;
};
ModulePtr make_transformer(const TransformerArgs& args, uint64_t seed);

at::Tensor random_input(at::IntArrayRef sizes, uint64_t seed);
at::Tensor random_tokens(at::IntArrayRef sizes, int64_t vocabulary, uint64_t seed);

// What stands at paths like "block0.up".
std::vector<torch::nn::Module*> modules_at(torch::nn::Module& module,
                                           const std::vector<std::string>& paths);

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SUPPORT_TRAINING_MODULES_H_
