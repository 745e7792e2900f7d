#ifndef PIPEWRIGHT_AUTOGRAD_CHECKPOINT_H_
#define PIPEWRIGHT_AUTOGRAD_CHECKPOINT_H_

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "pipewright/autograd/kept_results.h"
#include "pipewright/autograd/split_backward.h"

namespace pipewright::autograd {

// A random generator of the calling thread, for ranks that are threads of one process. LibTorch has
// one default generator of the CPU per process. While a scope lives, operators that its thread
// calls on the CPU without a generator (dropout, randn, normal_) draw from that of the scope:
//
//   std::jthread([&] {
//     const GeneratorScope generator(seed + rank);
//     ...  // random numbers do not depend on what other threads draw, or when
//   });
//
// Scopes nest. A device has a default generator of its own, which a scope does not replace. A scope
// ends on the thread that began it. Operators with a generator as an argument find out through
// LibTorch's dispatcher (DispatchKey::TESTING_ONLY_GenericMode); others are not slowed down.
class GeneratorScope {
 public:
  explicit GeneratorScope(uint64_t seed);
  explicit GeneratorScope(at::Generator generator);
  ~GeneratorScope();
  GeneratorScope(const GeneratorScope&) = delete;
  GeneratorScope& operator=(const GeneratorScope&) = delete;

 private:
  at::Generator outer_;
};

// The generator that operators of this thread draw from on the CPU: that of the innermost scope, or
// the default one of the process.
at::Generator cpu_generator();

// How many operators of this thread have drawn from the generator of a scope so far.
int64_t draw_count();

// Activation checkpointing: stores only the inputs of a part of a model, and recomputes its forward
// in backward (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016). LibTorch has no
// counterpart of torch.utils.checkpoint.
//
//   x = checkpoint([&](const Tensors& in) { return Tensors{block->forward(in[0])}; }, {x})[0];
//   x = checkpoint(block, x);
//
// The second forward starts with the same random state as the first one, so dropout draws the same
// numbers: the default generators of the CPU and of the inputs' devices are rewound for it and
// restored afterwards. It also runs under the autocast state of the first one. The CPU's generator
// belongs to the process, so ranks that are threads and draw random numbers each need their own
// (checkpoint.h): backward throws ContractError if a part's second forward drew other numbers
// than its first.
//
// With a policy, the part keeps the results of some operators too, and computes the others again:
//
//   x = checkpoint(forward, {x}, KeepPolicy::matrix_products())[0];
//
// What the first forward writes in place to tensors that outlive it, such as the running statistics
// of a batch norm, stays written once: the second forward's writes are undone when its backward is
// done (PyTorch's stay). It begins with the values of that time. A member that each forward assigns
// another tensor is assigned twice.
//
// Under a split backward the second forward runs once, in I, and the part's weights get their
// gradients in W. In a full backward they get them immediately, so that the activations of only one
// part exist at a time; the hooks of a weight that is used inside and outside the part are then
// called once for each. What computed a tensor that `forward` captures runs its backward for the
// part, and again for what else uses the tensor.

using Forward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// Returns forward(inputs). Gradients flow to `inputs` and to all weights that `forward` uses.
// `forward` is stored until backward, and must compute the same both times. With grad mode off this
// is a plain call. Results of the operators that `policy` names are kept, and not computed again;
// backward throws ContractError if something has written to one. All floating-point outputs require
// a gradient, except inputs (and views of them) that need none. A second backward throws
// c10::Error, unless the first one kept the graph.
std::vector<at::Tensor> checkpoint_function(Forward forward, const std::vector<at::Tensor>& inputs,
                                            const KeepPolicy& policy = {});

// How many checkpointed parts the calling thread has created so far. Parts inside parts count when
// the second forward of the outer one creates them.
int64_t checkpoint_count();

// Whether the calling thread is in the first forward of a part, which backward will repeat.
bool is_in_first_forward();

// Whether the calling thread is in a second forward, or in the backward that may contain one.
bool may_be_second_forward();

// Runs the second forward of the parts that end in these roots (root_of() of outputs) now, if it
// has not run, so that their backward need not: for one who has nothing else to do until the
// gradients are there. Roots of other nodes are ignored.
void recompute(const torch::autograd::edge_list& roots);

// A shared_ptr to a module or a ModuleHolder.
template <typename T>
concept PointsToModule = requires(T& pointer) {
  pointer.operator->();
};

template <typename Function>
requires(!PointsToModule<Function>) std::vector<at::Tensor> checkpoint(
    Function forward, const std::vector<at::Tensor>& inputs, const KeepPolicy& policy = {}) {
  return checkpoint_function(Forward(std::move(forward)), inputs, policy);
}

// For a module whose forward takes tensors and returns a tensor.
template <PointsToModule Module, typename... Inputs>
at::Tensor checkpoint(Module module, const at::Tensor& first, const Inputs&... others) {
  const auto forward = [module](const std::vector<at::Tensor>& inputs) mutable {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return std::vector<at::Tensor>{module->forward(inputs[I]...)};
    }
    (std::make_index_sequence<1 + sizeof...(Inputs)>());
  };
  return checkpoint_function(forward, {first, others...})[0];
}

// State that the backward of one microbatch shares with the checkpointed parts in its graph.
struct BackwardContext {
  // Receives the W half of the parts' backward; null in a full backward.
  WeightWork* weight_work = nullptr;
};

// A scope around a forward, on one thread: checkpointed parts created in it share `context`.
class BackwardScope {
 public:
  explicit BackwardScope(std::shared_ptr<BackwardContext> context);
  ~BackwardScope();
  BackwardScope(const BackwardScope&) = delete;
  BackwardScope& operator=(const BackwardScope&) = delete;

 private:
  std::shared_ptr<BackwardContext> outer_;
};

}  // namespace pipewright::autograd

#endif  // PIPEWRIGHT_AUTOGRAD_CHECKPOINT_H_
