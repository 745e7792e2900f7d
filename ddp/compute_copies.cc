#include "pipewright/ddp/compute_copies.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "pipewright/ir/errors.h"
#include "pipewright/modules/meta.h"
#include "pipewright/modules/part_guard.h"

namespace pipewright::ddp {

void ComputeCopies::begin() {
  if (!dtype_ || has_begun_) return;
  has_begun_ = true;
  const c10::NoGradGuard no_grad;
  const c10::InferenceMode no_inference(false);  // without it, copies are unusable for autograd
  for (Param& param : params_) {
    if (!param.registered.is_floating_point() || param.registered.scalar_type() == *dtype_)
      continue;
    at::Tensor copy = param.registered.to(*dtype_);
    if (modules::is_guarded(param.registered))
      copy = modules::guarded(copy, modules::PartKind::kSplit, "`" + param.name + "`");
    param.original = modules::contents_of(param.registered);
    param.copy = std::move(copy);
    modules::set_contents(param.registered, param.copy);
    param.version = static_cast<uint32_t>(param.registered._version());
  }
}

at::Tensor ComputeCopies::outlive_end(const at::Tensor& output) const {
  if (!has_begun_) return output;
  const bool holds_copy = std::ranges::any_of(params_, [&](const Param& param) {
    return param.copy.defined() && param.registered.is_same(output);
  });
  return holds_copy ? output.view_as(output) : output;
}

void ComputeCopies::end() {
  if (!std::exchange(has_begun_, false)) return;
  std::string problem;
  for (Param& param : params_) {
    if (!param.original.defined()) continue;
    const at::Tensor original = std::exchange(param.original, {});
    const at::Tensor copy = std::exchange(param.copy, {});
    if (!modules::has_contents(param.registered, copy)) {
      problem =
          c10::str("was replaced: expected the ", modules::describe_contents(copy),
                   " that replicate put there, got ", modules::describe_contents(param.registered));
    } else {
      modules::set_contents(param.registered, original);
      if (static_cast<uint32_t>(param.registered._version()) == param.version) continue;
      problem = "was written to";
    }
    problem = "replicate: parameter `" + param.name + "`, which held its " +
              c10::toString(*dtype_) + " copy between a forward and its backward, " + problem +
              "; call reshard() before changing parameters if no backward follows a forward";
  }
  if (!problem.empty()) throw ContractError(problem);
}

}  // namespace pipewright::ddp
