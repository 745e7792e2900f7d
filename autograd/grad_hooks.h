#ifndef PIPEWRIGHT_AUTOGRAD_GRAD_HOOKS_H_
#define PIPEWRIGHT_AUTOGRAD_GRAD_HOOKS_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

#include "pipewright/autograd/node_pointer.h"

// Hooks around the accumulation into the .grad of a leaf (torch::autograd's AccumulateGrad node).
// They run in a full backward and in the W half of a split one, but not in torch::autograd::grad,
// which does not accumulate.

namespace pipewright::autograd {

// Called on the thread that runs the backward; an exception from it ends that backward.
class GradListener {
 public:
  virtual ~GradListener() = default;
  // The backward is about to accumulate into the leaf's .grad.
  virtual void before_accumulate(size_t /*leaf*/) {}
  // After before_accumulate(): returns what autograd accumulates. A listener that keeps gradients
  // elsewhere takes `grad` and returns an undefined tensor.
  virtual at::Tensor take(size_t /*leaf*/, const at::Tensor& grad) { return grad; }
  // The backward has accumulated. Called once per leaf and backward, however often the leaf is
  // used; a backward inside another one (activation checkpointing) counts separately.
  virtual void after_accumulate(size_t leaf) = 0;
};

// Installs hooks on `leaf`; the listener's methods receive `number` as their argument. The hooks
// exist as long as the returned node: keep it, because a leaf does not own the node that
// accumulates into it. The node remembers the sizes that `leaf` has when the node is created.
[[nodiscard]] NodePtr listen(const at::Tensor& leaf, std::weak_ptr<GradListener> listener,
                             size_t number);

// Returns the listener of `leaf`; null if it has none or the listener no longer exists.
std::shared_ptr<GradListener> listener_of(const at::Tensor& leaf);

}  // namespace pipewright::autograd

#endif  // PIPEWRIGHT_AUTOGRAD_GRAD_HOOKS_H_
