#ifndef PIPEWRIGHT_AUTOGRAD_BACKWARD_WATCH_H_
#define PIPEWRIGHT_AUTOGRAD_BACKWARD_WATCH_H_

#include <memory>

namespace pipewright::autograd {

// Notifies a subclass when a backward starts and ends. Autograd's hooks only see what happens in
// between: the subclass calls watch() from such hooks, and the watch finds the two ends. The
// virtual methods run on a thread of that backward; what they throw ends the backward.
class BackwardWatch {
 public:
  virtual ~BackwardWatch() = default;

 protected:
  // To be called by hooks, any number of times per backward. `self` points to this watch, and keeps
  // it and whatever backward_ends() uses alive until the backward has ended.
  void watch(const std::shared_ptr<BackwardWatch>& self);

  // At the first watch() of a backward. The previous backward has either come to backward_ends(),
  // or stopped on an error: then what it left is still there.
  virtual void backward_begins() = 0;
  // Whether nothing that the rest of the backward does can matter.
  virtual bool is_complete() = 0;
  // At the end of the outermost backward. Checkpointing runs a backward inside a node of another
  // one; the end of such an inner backward does not count unless is_complete(). The watch then
  // continues after that node if the node had a post hook before it ran (the engine calls post
  // hooks only then), otherwise with the next watch().
  virtual void backward_ends() = 0;

 private:
  class InnerEnded;
  void ended(const std::shared_ptr<BackwardWatch>& self);

  std::weak_ptr<int> end_;  // of the current backward: expired if it stopped on an error
  bool inner_ended_ = false;
};

}  // namespace pipewright::autograd

#endif  // PIPEWRIGHT_AUTOGRAD_BACKWARD_WATCH_H_
