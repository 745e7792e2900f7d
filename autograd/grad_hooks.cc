#include "pipewright/autograd/grad_hooks.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace pipewright::autograd {
namespace {

using torch::autograd::variable_list;

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

}  // namespace pipewright::autograd
