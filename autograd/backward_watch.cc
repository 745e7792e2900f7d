// The engine calls what is queued for the end of a backward on the streams of the caller of
// backward(). But if no leaf accumulates in the outermost backward, because all weights are in
// checkpointed parts, it calls it on the default streams, which nothing orders after the backward
// (GraphTask::exec_post_processing, LibTorch 2.11). So the end runs on the stream of the node at
// which the watch began, ordered after and before the stream on which the engine called.
#include "pipewright/autograd/backward_watch.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>

#include <optional>
#include <utility>

namespace pipewright::autograd {

using torch::autograd::variable_list;

namespace {

std::optional<c10::Stream> stream_of_node() {
  const auto node = torch::autograd::get_current_node();
  return node ? node->stream() : std::nullopt;
}

void order(const c10::Stream& first, const c10::Stream& second) {
  c10::Event event(first.device_type());
  event.record(first);
  event.block(second);
}

template <typename Function>
void run_on(const std::optional<c10::Stream>& stream, const Function& function) {
  if (!stream) return function();
  const c10::Stream outer =
      c10::impl::VirtualGuardImpl(stream->device_type()).getStream(stream->device());
  if (outer == *stream) return function();
  order(outer, *stream);
  {
    const c10::StreamGuard guard(*stream);
    function();
  }
  order(*stream, outer);
}

}  // namespace

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
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self, end, stream = stream_of_node()] { run_on(stream, [&] { self->ended(self); }); });
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
