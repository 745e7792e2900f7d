#ifndef PIPEWRIGHT_AUTOGRAD_HOOKS_H_
#define PIPEWRIGHT_AUTOGRAD_HOOKS_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>

#include "pipewright/autograd/node_pointer.h"

namespace pipewright::autograd {

// Notifies a subclass when a backward starts and ends. Autograd has hooks only for single tensors
// and nodes: the subclass calls watch() from such hooks, and this class detects the start and the
// end. The virtual methods run on a thread of that backward; an exception from one ends the
// backward.
class BackwardWatch {
 public:
  virtual ~BackwardWatch() = default;

 protected:
  // To be called by hooks, any number of times per backward. `self` points to this object; it must
  // keep everything that backward_ends() uses alive, and is itself kept until the backward has
  // ended.
  void watch(const std::shared_ptr<BackwardWatch>& self);

  // Called by the first watch() of a backward. If there was no backward_ends() since the last
  // backward_begins(), the previous backward stopped on an error.
  virtual void backward_begins() = 0;
  // Returns whether the subclass has seen all that it waits for, whatever the rest of the backward
  // does.
  virtual bool is_complete() = 0;
  // Called at the end of the outermost backward. Checkpointing, like any reentrant node, runs a
  // backward inside a node of another one; the end of such an inner backward does not count unless
  // is_complete(). The watch then continues after that node.
  virtual void backward_ends() = 0;

 private:
  class InnerEnded;
  void ended(const std::shared_ptr<BackwardWatch>& self);

  std::weak_ptr<int> end_;  // of the current backward: expired if it stopped on an error
  bool inner_ended_ = false;
};

// Hooks around the accumulation into the .grad of a leaf (torch::autograd's AccumulateGrad node).
// They run in a full backward and in the W half of a split one, but not in torch::autograd::grad,
// which does not accumulate.

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

// Registers a hook that a backward calls, once, before it runs what `output` was computed from. A
// plain hook of a view is lost when the view, or another view of the same memory, is written to in
// place later: autograd rebuilds the graph of the view without the node that has the hook. This one
// is called in that case too.
//
//   on_backward_of(output, [unit] { unit->gather(); });
//
// Without effect for a leaf and for a tensor that requires no gradient. An exception from `hook`
// ends the backward.
void on_backward_of(const at::Tensor& output, std::function<void()> hook);

}  // namespace pipewright::autograd

#endif  // PIPEWRIGHT_AUTOGRAD_HOOKS_H_
