#ifndef PIPEWRIGHT_MODULES_DISTINCT_H_
#define PIPEWRIGHT_MODULES_DISTINCT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

// Lists of tensors without repetitions. A parameter that is registered under two names, as tied
// weights are, is in module->parameters() of LibTorch twice; what changes or counts each element
// of a list must do so once.

namespace pipewright::modules {

// Each tensor once, where it is first. Another tensor in the same memory is another one.
std::vector<at::Tensor> distinct(const std::vector<at::Tensor>& tensors);

// Gradients of parameters, each once, also if it is the gradient of several:
//
//   DistinctGrads grads;
//   for (const at::Tensor& parameter : parameters) {
//     if (const at::Tensor grad = grads.take(parameter); grad.defined()) grad.div_(2);
//   }
class DistinctGrads {
 public:
  // Undefined if the parameter has no gradient, or one without elements, or one in the memory of a
  // gradient that was taken before.
  at::Tensor take(const at::Tensor& parameter);

 private:
  // Where the memory begins: a storage and an offset, or a tensor without storage.
  std::set<std::pair<const void*, int64_t>> taken_;
};

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_DISTINCT_H_
