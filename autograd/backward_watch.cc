#include "pipewright/autograd/backward_watch.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>

#include <utility>

namespace pipewright::autograd {

using torch::autograd::variable_list;

// Behind a node in which a backward of its own has ended: where the other one goes on.
class BackwardWatch::InnerEnded final : public torch::autograd::FunctionPostHook {
 public:
  explicit InnerEnded(std::weak_ptr<BackwardWatch> watch) : watch_(std::move(watch)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    const std::shared_ptr<BackwardWatch> watch = watch_.lock();
    if (watch && watch->inner_ended_) watch->watch();
    return outputs;
  }

 private:
  const std::weak_ptr<BackwardWatch> watch_;
};

void BackwardWatch::watch() {
  if (!end_.expired()) return;
  if (!std::exchange(inner_ended_, false)) backward_begins();
  // An engine that stops on an error forgets its callbacks: then what they held is gone.
  const auto end = std::make_shared<int>();
  end_ = end;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self = shared_from_this(), end] { self->ended(); });
}

void BackwardWatch::ended() {
  end_.reset();
  const auto node = torch::autograd::get_current_node();
  if (node && !is_complete()) {
    inner_ended_ = true;
    node->add_post_hook(std::make_unique<InnerEnded>(weak_from_this()));
    return;
  }
  backward_ends();
}

}  // namespace pipewright::autograd
