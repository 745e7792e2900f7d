#ifndef PIPEWRIGHT_AUTOGRAD_CHECKPOINT_H_
#define PIPEWRIGHT_AUTOGRAD_CHECKPOINT_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "pipewright/autograd/split_backward.h"

// Activation checkpointing: keeps the inputs of a part of a model, and runs its forward again in
// backward (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016). LibTorch has none.
//
//   x = checkpoint([&](const Tensors& in) { return Tensors{block->forward(in[0])}; }, {x})[0];
//   x = checkpoint(block, x);
//
// The state of the default generators, of the CPU and of the inputs' devices, is put back for the
// second run, and restored after it: dropout draws the same. Generators are one for the process, so
// with ranks as threads layers that draw must not run at the same time.
//
// Under a split backward the second run happens once, in I (of what no input leads to, in W), and
// the part's weights get their gradients in W. In a full backward they get them on the spot, so
// that one part's activations live at a time; a weight that is used inside and outside then has its
// hooks called for each.

namespace pipewright::autograd {

using Forward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// The outputs of `forward`; gradients flow to `inputs` and to whatever weights it uses. `forward`
// must do the same both times; it is kept until backward. With grad mode off it is just called.
std::vector<at::Tensor> checkpoint_function(Forward forward, const std::vector<at::Tensor>& inputs);

// A shared_ptr or a ModuleHolder.
template <typename T>
concept PointsToModule = requires(T& pointer) {
  pointer.operator->();
};

template <typename Function>
requires(!PointsToModule<Function>) std::vector<at::Tensor> checkpoint(
    Function forward, const std::vector<at::Tensor>& inputs) {
  return checkpoint_function(Forward(std::move(forward)), inputs);
}

// Over a module whose forward takes tensors and returns one.
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

// What the backward of one microbatch shares with the checkpointed parts in its graph. A stage
// opens a scope around forward; parts that are made in it keep the context.
struct BackwardContext {
  // Where parts leave their weights' work; null in a full backward.
  WeightWork* weight_work = nullptr;
};

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
