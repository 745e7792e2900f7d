#include "examples/fused_adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

namespace pipewright::examples {
namespace {

using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;
using Tensors = std::vector<at::Tensor>;

bool can_fuse(const torch::optim::OptimizerParamGroup& group) {
  if (group.params().empty()) return true;
  const at::Tensor& first = group.params()[0];
  const auto fits = [&](const at::Tensor& tensor) {
    return tensor.device() == first.device() && tensor.scalar_type() == first.scalar_type() &&
           tensor.is_contiguous();
  };
  return !static_cast<const AdamWOptions&>(group.options()).amsgrad() &&
         std::ranges::all_of(group.params(), [&](const at::Tensor& parameter) {
           return fits(parameter) && (!parameter.grad().defined() || fits(parameter.grad()));
         });
}

}  // namespace

at::Tensor FusedAdamW::step(LossClosure closure) {
  if (closure || !std::ranges::all_of(param_groups_, can_fuse)) return AdamW::step(closure);
  const c10::NoGradGuard no_grad;
  for (const auto& group : param_groups_) {
    Tensors parameters, gradients, averages, square_averages, steps;
    std::map<int64_t, at::Tensor>
        by_number;  // of steps, on the device: one kernel for all, not each
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& slot = state_[parameter.unsafeGetTensorImpl()];
      if (!slot) {
        auto fresh = std::make_unique<AdamWParamState>();
        fresh->exp_avg(at::zeros_like(parameter));
        fresh->exp_avg_sq(at::zeros_like(parameter));
        slot = std::move(fresh);
      }
      auto& state = static_cast<AdamWParamState&>(*slot);
      state.step(state.step() + 1);
      parameters.push_back(parameter);
      gradients.push_back(parameter.grad());
      averages.push_back(state.exp_avg());
      square_averages.push_back(state.exp_avg_sq());
      at::Tensor& step = by_number[state.step()];
      if (!step.defined())
        step = at::scalar_tensor(state.step(), parameter.options().dtype(at::kFloat));
      steps.push_back(step);
    }
    if (parameters.empty()) continue;
    const auto& options = static_cast<const AdamWOptions&>(group.options());
    const auto [beta1, beta2] = options.betas();
    at::_fused_adamw_(parameters, gradients, averages, square_averages, /*max_exp_avg_sqs=*/{},
                      steps, options.lr(), beta1, beta2, options.weight_decay(), options.eps(),
                      /*amsgrad=*/false, /*maximize=*/false);
  }
  return {};
}

}  // namespace pipewright::examples
