// The engine calls what is queued for the end of a backward on the streams of the caller of
// backward(). But if no leaf accumulates in the outermost backward, because all weights are in
// checkpointed parts, it calls it on the default streams, which nothing orders after the backward
// (GraphTask::exec_post_processing, LibTorch 2.11). So the end runs on the stream of the node at
// which the watch began, ordered after and before the stream on which the engine called.
#include "pipewright/autograd/hooks.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <memory>
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

namespace {

class Before final : public torch::autograd::FunctionPreHook {
 public:
  Before(std::weak_ptr<GradListener> listener, size_t leaf)
      : listener_(std::move(listener)), leaf_(leaf) {}
  variable_list operator()(const variable_list& grads) override {
    const auto listener = listener_.lock();
    if (!listener) return grads;
    listener->before_accumulate(leaf_);
    return {listener->take(leaf_, grads[0])};
  }

 private:
  const std::weak_ptr<GradListener> listener_;
  const size_t leaf_;
};

// listener_of() also finds the leaf's listener through it.
class After final : public torch::autograd::FunctionPostHook {
 public:
  After(std::weak_ptr<GradListener> listener, size_t leaf)
      : listener_(std::move(listener)), leaf_(leaf) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    if (const auto listener = listener_.lock()) listener->after_accumulate(leaf_);
    return outputs;
  }
  std::shared_ptr<GradListener> listener() const { return listener_.lock(); }

 private:
  const std::weak_ptr<GradListener> listener_;
  const size_t leaf_;
};

}  // namespace

NodePtr listen(const at::Tensor& leaf, std::weak_ptr<GradListener> listener, size_t number) {
  NodePtr accumulator = torch::autograd::impl::grad_accumulator(leaf);
  accumulator->add_pre_hook(std::make_unique<Before>(listener, number));
  accumulator->add_post_hook(std::make_unique<After>(std::move(listener), number));
  return accumulator;
}

std::shared_ptr<GradListener> listener_of(const at::Tensor& leaf) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(leaf);
  if (!accumulator) return nullptr;
  for (const auto& hook : accumulator->post_hooks()) {
    if (const auto* after = dynamic_cast<const After*>(hook.get())) {
      if (auto listener = after->listener()) return listener;
    }
  }
  return nullptr;
}

// A write to a view gives its base a new node, which leads to the base's old node, and the view's
// node is rebuilt on top of the new one. So every path from the view into what computed it passes
// the base's old node, before the write and after it. In between there are only views.
//
// The view's own node has the hook too. Without a write it runs before the base's, and so before
// the backward of other results that were computed from the base and that the caller may also use.

void on_backward_of(const at::Tensor& output, std::function<void()> hook) {
  const auto can_have_hook = [](const at::TensorBase& tensor) {
    return tensor.requires_grad() && !tensor.is_leaf();
  };
  if (!can_have_hook(output)) return;
  const auto once = [hook = std::move(hook),
                     last = std::make_shared<int64_t>(-1)](const at::TensorBase&) {
    const int64_t backward = torch::autograd::get_current_graph_task_id();
    if (std::exchange(*last, backward) != backward) hook();
  };
  output.register_hook(once);
  if (output.is_view() && can_have_hook(output._base())) output._base().register_hook(once);
}

}  // namespace pipewright::autograd
