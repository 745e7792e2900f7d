#include "pipewright/modules/clip_grad_norm.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <utility>

#include "pipewright/modules/distribution.h"
#include "pipewright/modules/tensors.h"

namespace pipewright::modules {
namespace {

// Gradients that a kernel can take together. Squares of fp16 values overflow, so all but those in
// fp64 are computed with in fp32.
struct AlikeGrads {
  int copies;
  at::ScalarType compute;
  std::vector<at::Tensor> grads;
};

std::vector<AlikeGrads> alike_grads(const std::vector<GradsToClip>& parts) {
  std::vector<AlikeGrads> result;
  DistinctGrads grads;
  for (const GradsToClip& part : parts) {
    for (const at::Tensor& parameter : part.parameters) {
      const at::Tensor grad = grads.take(parameter);
      if (!grad.defined()) continue;
      const at::ScalarType compute = grad.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
      const auto is_alike = [&](const AlikeGrads& alike) {
        return alike.copies == part.copies && alike.compute == compute &&
               alike.grads[0].device() == grad.device();
      };
      auto found = std::find_if(result.begin(), result.end(), is_alike);
      if (found == result.end()) found = result.insert(found, {part.copies, compute, {}});
      found->grads.push_back(grad);
    }
  }
  return result;
}

}  // namespace

std::vector<GradsToClip> grads_to_clip(const std::vector<at::Tensor>& parameters) {
  std::map<int, std::vector<at::Tensor>> by_copies;
  for (const at::Tensor& parameter : parameters) {
    const layout::Layout layout = layout_of(parameter).layout;
    int copies = 1;
    for (size_t i = 0; i < layout.placements().size(); ++i)
      copies *= layout.placements()[i].dim() ? 1 : layout.mesh().dims()[i].size;
    by_copies[copies].push_back(parameter);
  }
  std::vector<GradsToClip> result;
  for (auto& [copies, same] : by_copies) result.push_back({std::move(same), copies});
  return result;
}

at::Tensor total_grad_norm(const std::vector<GradsToClip>& grads, c10d::Backend& group,
                           double norm_type) {
  if (!(norm_type > 0)) {
    throw std::invalid_argument(
        c10::str("total_grad_norm: expected norm_type > 0, got ", norm_type));
  }
  const c10::NoGradGuard no_grad;
  const bool is_max = std::isinf(norm_type);
  at::Device device = group.getBoundDeviceId().value_or(at::kCPU);
  for (const GradsToClip& part : grads) {
    if (!part.parameters.empty()) device = part.parameters[0].device();
  }
  // The sum is in fp64, the same on all ranks, whatever the dtypes of their parameters are.
  at::Tensor sum = at::zeros({}, at::TensorOptions(at::kDouble).device(device));
  for (const AlikeGrads& alike : alike_grads(grads)) {
    const at::Tensor norms =
        at::stack(at::_foreach_norm(alike.grads, norm_type, alike.compute)).to(at::kDouble);
    sum = is_max ? at::maximum(sum, norms.max()) : sum + norms.pow(norm_type).sum() / alike.copies;
  }
  if (group.getSize() > 1) {
    c10d::AllreduceOptions options;
    options.reduceOp = is_max ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
    // Gradients may be on the host and the group's tensors on a device (CPUOffloadPolicy).
    std::vector<at::Tensor> sums = {sum.to(group.getBoundDeviceId().value_or(device))};
    group.allreduce(sums, options)->wait();
    sum = sums[0];
  }
  return is_max ? sum : sum.pow(1 / norm_type);
}

at::Tensor clip_grad_norm_(const std::vector<GradsToClip>& grads, c10d::Backend& group,
                           double max_norm, double norm_type) {
  if (!(max_norm >= 0) || !(norm_type > 0)) {
    throw std::invalid_argument(
        c10::str("clip_grad_norm_: expected max_norm >= 0 and norm_type > 0, got max_norm ",
                 max_norm, " and norm_type ", norm_type));
  }
  const c10::NoGradGuard no_grad;
  at::Tensor norm = total_grad_norm(grads, group, norm_type);
  // Like PyTorch, this does not read the value of the norm, which would make the host wait for the
  // device.
  const at::Tensor factor = at::clamp_max(max_norm / (norm + 1e-6), 1);
  for (const AlikeGrads& alike : alike_grads(grads))
    at::_foreach_mul_(alike.grads, factor.to(alike.grads[0].device(), alike.compute));
  return norm;
}

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, c10d::Backend& group,
                           double max_norm, double norm_type) {
  return clip_grad_norm_(std::vector<GradsToClip>{{parameters}}, group, max_norm, norm_type);
}

}  // namespace pipewright::modules
