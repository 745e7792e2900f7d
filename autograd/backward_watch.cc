#include "pipewright/autograd/backward_watch.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>

#include <utility>

namespace pipewright::autograd {

using torch::autograd::variable_list;

// Runs after the node in which an inner backward has ended, where the outer backward continues.
class BackwardWatch::InnerEnded final : public torch::autograd::FunctionPostHook {
 public:
  explicit InnerEnded(std::weak_ptr<BackwardWatch> watch) : watch_(std::move(watch)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    const std::shared_ptr<BackwardWatch> watch = watch_.lock();
    if (watch && watch->inner_ended_) watch->watch(watch);
    return outputs;
  }

 private:
  const std::weak_ptr<BackwardWatch> watch_;
};

void BackwardWatch::watch(const std::shared_ptr<BackwardWatch>& self) {
  if (!end_.expired()) return;
  if (!std::exchange(inner_ended_, false)) backward_begins();
  // When the engine stops on an error it destroys its callbacks, and `end` with them.
  const auto end = std::make_shared<int>();
  end_ = end;
  torch::autograd::Engine::get_default_engine().queue_callback([self, end] { self->ended(self); });
}

void BackwardWatch::ended(const std::shared_ptr<BackwardWatch>& self) {
  end_.reset();
  const auto node = torch::autograd::get_current_node();
  if (node && !is_complete()) {
    inner_ended_ = true;
    node->add_post_hook(std::make_unique<InnerEnded>(self));
    return;
  }
  backward_ends();
}

}  // namespace pipewright::autograd
