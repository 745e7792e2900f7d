#ifndef PIPEWRIGHT_TESTS_SUPPORT_TRAINING_MODULES_H_
#define PIPEWRIGHT_TESTS_SUPPORT_TRAINING_MODULES_H_

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

// The modules of PyTorch's tests of FSDP2 and replicate. All are in fp64, so that rounding errors
// of sums in a different order do not hide real errors. They call their submodules through
// modules::forward, as wrappers require.

namespace pipewright::tests {

class TestModule : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& input) = 0;
  // The submodules that a test wraps separately, bottom-up, without the module itself.
  virtual std::vector<std::shared_ptr<torch::nn::Module>> parts() { return {}; }
};
using ModulePtr = std::shared_ptr<TestModule>;

// Equal seeds produce equal modules, on every thread.
ModulePtr make_two_linears(std::vector<std::pair<int64_t, int64_t>> shapes, uint64_t seed);
// in_proj, relu, out_proj, relu.
ModulePtr make_mlp(int64_t dim, int64_t multiplier, uint64_t seed);
// A Linear, then MLPs; the MLPs are its parts, in which it may checkpoint activations.
ModulePtr make_mlps(int64_t dim, int mlps, uint64_t seed, bool checkpointed = false);
// The module, cast to float: all modules here are made in double.
ModulePtr in_float(ModulePtr module);
// Linear(4, 4), called twice, and Linear(4, 5); the inner one is its only part. `chained`: its
// second call takes the first one's result, not the same input.
ModulePtr make_repeated(uint64_t seed, bool chained);
// A Conv2d over patches, called through a method other than forward, and a Linear head; the former
// is its only part, "vit". Input [batch, 3, 224, 224].
ModulePtr make_vit(uint64_t seed);
// Token and position embeddings, blocks of attention and FFN, and an output layer that may share
// the embedding's weight; the blocks are its parts. Input [batch, tokens]. The defaults are those
// of PyTorch's ModelArgs, except for its dropout of 0.1.
enum class Checkpointed {
  kNot,
  kAround,   // around the call of the block
  kInside,   // inside the call of the block that fully_shard sees
  kWrapper,  // by a module around the block, which is then the part
};
inline constexpr const char* kCheckpointed = "checkpointed";  // the block's name in kWrapper
struct TransformerArgs {
  int layers = 2;
  int64_t vocabulary = 8, tokens = 16, dim = 16, heads = 4;
  bool tied = true;
  Checkpointed checkpointed = Checkpointed::kNot;
  bool ffn_checkpointed = false;  // besides, the FFN in each block
  // Uses the default generator of the process, so only for ranks that are processes.
  double dropout = 0;
};
ModulePtr make_transformer(const TransformerArgs& args, uint64_t seed);

at::Tensor random_input(at::IntArrayRef sizes, uint64_t seed);
at::Tensor random_tokens(at::IntArrayRef sizes, int64_t vocabulary, uint64_t seed);

// The submodules at paths such as "block0.up".
std::vector<torch::nn::Module*> modules_at(torch::nn::Module& module,
                                           const std::vector<std::string>& paths);

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SUPPORT_TRAINING_MODULES_H_
