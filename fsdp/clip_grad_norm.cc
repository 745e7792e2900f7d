#include "pipewright/fsdp/clip_grad_norm.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace pipewright::fsdp {

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, c10d::Backend& group,
                           double max_norm, double norm_type) {
  if (!(max_norm >= 0) || !(norm_type > 0)) {
    throw std::invalid_argument(
        c10::str("clip_grad_norm_: expected max_norm >= 0 and norm_type > 0, got max_norm ",
                 max_norm, " and norm_type ", norm_type));
  }
  if (parameters.empty()) {
    throw std::invalid_argument("clip_grad_norm_: expected at least one parameter, got none");
  }
  const c10::NoGradGuard no_grad;
  const bool is_max = std::isinf(norm_type);
  // Squares of fp16 values overflow, so norms are computed in fp32 or fp64: the same on all ranks,
  // whichever shards are empty.
  const bool is_double = std::ranges::any_of(parameters, [](const at::Tensor& parameter) {
    return parameter.scalar_type() == at::kDouble;
  });
  const at::ScalarType dtype = is_double ? at::kDouble : at::kFloat;
  at::Tensor sum = at::zeros({}, parameters[0].options().dtype(dtype).requires_grad(false));
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& grad = parameter.grad();
    if (!grad.defined() || grad.numel() == 0) continue;
    const at::Tensor sizes = grad.to(dtype).abs();
    sum = is_max ? at::maximum(sum, sizes.max()) : sum + sizes.pow(norm_type).sum();
  }
  if (group.getSize() > 1) {
    c10d::AllreduceOptions options;
    options.reduceOp = is_max ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
    std::vector<at::Tensor> sums = {sum};
    group.allreduce(sums, options)->wait();
  }
  const at::Tensor norm = is_max ? sum : sum.pow(1 / norm_type);
  // Like PyTorch, this does not read the value of the norm, which would make the host wait for the
  // device.
  const at::Tensor factor = at::clamp_max(max_norm / (norm + 1e-6), 1);
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) parameter.grad().mul_(factor);
  }
  return norm;
}

}  // namespace pipewright::fsdp
