#ifndef PIPEWRIGHT_AUTOGRAD_GRAD_HOOKS_H_
#define PIPEWRIGHT_AUTOGRAD_GRAD_HOOKS_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <memory>

// Hooks around the accumulation into a leaf's .grad: of a whole backward and of the W half of a
// split one, but not of torch::autograd::grad, which adds to none.

namespace pipewright::autograd {

// Called in the thread that runs the backward; what it throws ends that backward.
class GradListener {
 public:
  virtual ~GradListener() = default;
  // The gradient of the leaf is about to be added to.
  virtual void grad_comes(size_t leaf) = 0;
  // It has been. Once in a backward for each leaf, however often it is used; a backward within it,
  // as checkpointing runs it, counts as one more.
  virtual void grad_ready(size_t leaf) = 0;
};

// The hooks live as long as what is returned: a leaf does not hold the node that adds to it.
// `number` is what the listener knows the leaf by. The node remembers the sizes that `leaf` has
// now.
[[nodiscard]] std::shared_ptr<torch::autograd::Node> listen(const at::Tensor& leaf,
                                                            std::weak_ptr<GradListener> listener,
                                                            size_t number);

// The listener of a leaf that is still there; null if there is none.
std::shared_ptr<GradListener> listener_of(const at::Tensor& leaf);

}  // namespace pipewright::autograd

#endif  // PIPEWRIGHT_AUTOGRAD_GRAD_HOOKS_H_
