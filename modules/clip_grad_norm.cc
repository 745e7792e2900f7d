#include "pipewright/modules/clip_grad_norm.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <map>
#include <stdexcept>
#include <utility>

#include "pipewright/comms/group.h"
#include "pipewright/modules/distribution.h"

namespace pipewright::modules {

std::vector<GradsToClip> grads_to_clip(const std::vector<at::Tensor>& parameters) {
  std::map<int, std::vector<at::Tensor>> by_copies;
  for (const at::Tensor& parameter : parameters) {
    const comms::Layout layout = layout_of(parameter).layout;
    int copies = 1;
    for (size_t i = 0; i < layout.placements().size(); ++i)
      copies *= layout.placements()[i].dim() ? 1 : layout.mesh().dims()[i].size;
    by_copies[copies].push_back(parameter);
  }
  std::vector<GradsToClip> result;
  for (auto& [copies, same] : by_copies) result.push_back({std::move(same), copies});
  return result;
}

at::Tensor clip_grad_norm_(const std::vector<GradsToClip>& grads, c10d::Backend& group,
                           double max_norm, double norm_type) {
  if (!(max_norm >= 0) || !(norm_type > 0)) {
    throw std::invalid_argument(
        c10::str("clip_grad_norm_: expected max_norm >= 0 and norm_type > 0, got max_norm ",
                 max_norm, " and norm_type ", norm_type));
  }
  const c10::NoGradGuard no_grad;
  const bool is_max = std::isinf(norm_type);
  at::Device device = group.getBoundDeviceId().value_or(at::kCPU);
  for (const GradsToClip& part : grads) {
    if (!part.parameters.empty()) device = part.parameters[0].device();
  }
  // The sum is in fp64, the same on all ranks, whatever the dtypes of their parameters are. Squares
  // of fp16 values overflow, so each gradient is summed in fp32 or fp64.
  at::Tensor sum = at::zeros({}, at::TensorOptions(at::kDouble).device(device));
  for (const GradsToClip& part : grads) {
    for (const at::Tensor& parameter : part.parameters) {
      const at::Tensor& grad = parameter.grad();
      if (!grad.defined() || grad.numel() == 0) continue;
      const bool is_double = grad.scalar_type() == at::kDouble;
      const at::Tensor sizes = grad.to(is_double ? at::kDouble : at::kFloat).abs();
      sum = is_max ? at::maximum(sum, sizes.max().to(at::kDouble))
                   : sum + sizes.pow(norm_type).sum().to(at::kDouble) / part.copies;
    }
  }
  if (group.getSize() > 1) {
    c10d::AllreduceOptions options;
    options.reduceOp = is_max ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
    // Gradients may be on the host and the group's tensors on a device (CPUOffloadPolicy).
    std::vector<at::Tensor> sums = {sum.to(group.getBoundDeviceId().value_or(device))};
    comms::wait(group, *group.allreduce(sums, options));
    sum = sums[0];
  }
  const at::Tensor norm = is_max ? sum : sum.pow(1 / norm_type);
  // Like PyTorch, this does not read the value of the norm, which would make the host wait for the
  // device.
  const at::Tensor factor = at::clamp_max(max_norm / (norm + 1e-6), 1);
  for (const GradsToClip& part : grads) {
    for (const at::Tensor& parameter : part.parameters) {
      if (parameter.grad().defined()) parameter.grad().mul_(factor.to(parameter.grad().device()));
    }
  }
  return norm;
}

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, c10d::Backend& group,
                           double max_norm, double norm_type) {
  return clip_grad_norm_(std::vector<GradsToClip>{{parameters}}, group, max_norm, norm_type);
}

}  // namespace pipewright::modules
