#include "pipewright/modules/grad_scaler.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "pipewright/ir/errors.h"
#include "pipewright/modules/tensors.h"

namespace pipewright::modules {
namespace {

// Returns its input and multiplies the gradient.
struct ScaledGradient : torch::autograd::Function<ScaledGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            double scale) {
    context->saved_data["scale"] = scale;
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    return {grads[0] * context->saved_data["scale"].toDouble(), {}};
  }
};

}  // namespace

GradScaler::GradScaler(comms::BackendPtr group, Options options)
    : group_(std::move(group)), options_(options), scale_(options.init_scale) {
  const bool shrinks = 0 < options.backoff_factor && options.backoff_factor < 1;
  if (!shrinks || !(options.growth_factor > 1) || !(options.init_scale > 0) ||
      options.growth_interval <= 0) {
    throw std::invalid_argument(c10::str(
        "GradScaler: expected init_scale > 0, growth_factor > 1, 0 < backoff_factor < 1 and "
        "growth_interval > 0, got ",
        options.init_scale, ", ", options.growth_factor, ", ", options.backoff_factor, " and ",
        options.growth_interval));
  }
}

at::Tensor GradScaler::scale_gradient(const at::Tensor& loss) const {
  return ScaledGradient::apply(loss, scale_);
}

void GradScaler::unscale_(const std::vector<at::Tensor>& parameters) {
  if (found_inf_.defined())
    throw ContractError("GradScaler: expected update() between two calls of unscale_()");
  const c10::NoGradGuard no_grad;
  const at::Device device =
      parameters.empty() ? group_->getBoundDeviceId().value_or(at::kCPU) : parameters[0].device();
  at::Tensor found = at::zeros({}, at::TensorOptions(at::kFloat).device(device));
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;  // one kernel each
  DistinctGrads grads;
  for (const at::Tensor& parameter : parameters) {
    at::Tensor grad = grads.take(parameter);
    if (!grad.defined()) continue;
    if (grad.is_complex()) grad = at::view_as_real(grad);
    by_dtype[grad.scalar_type()].push_back(grad);
  }
  const at::Tensor inverse = at::full({}, 1 / scale_, at::TensorOptions(at::kFloat).device(device));
  for (const auto& [dtype, same] : by_dtype)
    at::_amp_foreach_non_finite_check_and_unscale_(same, found, inverse);
  if (group_->getSize() > 1) {
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    std::vector<at::Tensor> all = {found};
    group_->allreduce(all, options)->wait();
  }
  found_inf_ = found;
}

bool GradScaler::found_inf() {
  if (!found_inf_.defined()) return false;
  if (!found_inf_.is_cpu()) found_inf_ = found_inf_.cpu();  // waits once for each unscale_()
  return found_inf_.item<float>() != 0;
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!found_inf_.defined()) {
    std::vector<at::Tensor> parameters;
    for (const auto& group : optimizer.param_groups())
      parameters.insert(parameters.end(), group.params().begin(), group.params().end());
    unscale_(parameters);
  }
  if (found_inf()) return false;
  optimizer.step();
  return true;
}

void GradScaler::update() {
  if (!found_inf_.defined())
    throw ContractError("GradScaler: expected unscale_() or step() before update()");
  if (found_inf()) {
    scale_ *= options_.backoff_factor;
    steps_without_inf_ = 0;
  } else if (++steps_without_inf_ == options_.growth_interval) {
    scale_ *= options_.growth_factor;
    steps_without_inf_ = 0;
  }
  found_inf_.reset();
}

}  // namespace pipewright::modules
