#ifndef PIPEWRIGHT_AUTOGRAD_BACKWARD_WATCH_H_
#define PIPEWRIGHT_AUTOGRAD_BACKWARD_WATCH_H_

#include <memory>

// Who wants to know where a backward begins and ends, of which hooks see only the middle.

namespace pipewright::autograd {

// What it calls runs in a thread of the backward; what is thrown ends the backward.
class BackwardWatch : public std::enable_shared_from_this<BackwardWatch> {
 public:
  virtual ~BackwardWatch() = default;

 protected:
  // To be called by hooks, as often as they like.
  void watch();

  // At the first watch() of a backward. The one before has either come to backward_ends(), or
  // stopped on an error: then what it left is still there.
  virtual void backward_begins() = 0;
  // Whether nothing that the rest of the backward does can matter.
  virtual bool is_complete() = 0;
  // At the end of the outermost backward. A backward within a node of another, as checkpointing
  // runs it, is no end, unless is_complete(): the watch goes on behind that node if it had a post
  // hook before it ran (the engine only calls them then), or else with the next watch().
  virtual void backward_ends() = 0;

 private:
  class InnerEnded;
  void ended();

  std::weak_ptr<int> end_;  // of the backward that runs: gone if it stopped on an error
  bool inner_ended_ = false;
};

}  // namespace pipewright::autograd

#endif  // PIPEWRIGHT_AUTOGRAD_BACKWARD_WATCH_H_
