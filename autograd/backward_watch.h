#ifndef PIPEWRIGHT_AUTOGRAD_BACKWARD_WATCH_H_
#define PIPEWRIGHT_AUTOGRAD_BACKWARD_WATCH_H_

#include <memory>

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

}  // namespace pipewright::autograd

#endif  // PIPEWRIGHT_AUTOGRAD_BACKWARD_WATCH_H_
