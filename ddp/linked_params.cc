#include "pipewright/ddp/linked_params.h"

#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace pipewright::ddp {

// The hooks are on the tensors themselves, also on frozen ones: such hooks survive casts.
void LinkedParams::set_listener(std::weak_ptr<autograd::GradListener> listener,
                                const std::function<void(size_t)>& on_grad) {
  listener_ = std::move(listener);
  for (size_t i = 0; i < params_.size(); ++i) {
    const at::Tensor& tensor = params_[i].tensor;
    if (!tensor.is_floating_point() && !tensor.is_complex()) continue;  // never trained
    const bool is_trained = tensor.requires_grad();
    tensor.set_requires_grad(true);
    tensor.register_hook([on_grad, i](const at::TensorBase&) { on_grad(i); });
    tensor.set_requires_grad(is_trained);
  }
}

bool LinkedParams::is_ours(size_t i) const {
  const Param& param = params_[i];
  return param.linked_index &&
         torch::autograd::impl::try_get_grad_accumulator(param.tensor) == param.accumulator;
}

// A parameter that was frozen when a nested call and this one saw it, and that the former trains.
bool LinkedParams::is_of_other_unit(size_t i) const {
  const auto listener = autograd::listener_of(params_[i].tensor);
  return listener && listener != listener_.lock();
}

bool LinkedParams::are_linked() const {
  for (size_t i = 0; i < params_.size(); ++i) {
    const bool is_trained = params_[i].tensor.requires_grad() && !is_of_other_unit(i);
    if (is_trained ? !is_ours(i) : params_[i].linked_index.has_value()) return false;
  }
  return true;
}

std::vector<NamedTensor> LinkedParams::link(bool any_dtype) {
  std::vector<NamedTensor> linked;
  for (size_t i = 0; i < params_.size(); ++i) {
    Param& param = params_[i];
    param.linked_index.reset();
    if (!param.tensor.requires_grad() || is_of_other_unit(i)) continue;
    const auto known = torch::autograd::impl::try_get_grad_accumulator(param.tensor);
    if (!known || known != param.accumulator)
      param.accumulator = autograd::listen(param.tensor, listener_, i);
    if (any_dtype) param.accumulator->mutable_input_metadata(0).set_grad_dtype(std::nullopt);
    param.linked_index = linked.size();
    linked.push_back({param.name, param.tensor});
  }
  return linked;
}

}  // namespace pipewright::ddp
