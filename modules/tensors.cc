#include "pipewright/modules/tensors.h"

namespace pipewright::modules {

std::vector<at::Tensor> distinct(const std::vector<at::Tensor>& tensors) {
  std::set<const at::TensorImpl*> seen;
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) {
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) result.push_back(tensor);
  }
  return result;
}

at::Tensor DistinctGrads::take(const at::Tensor& parameter) {
  const at::Tensor& grad = parameter.grad();
  if (!grad.defined() || grad.numel() == 0) return {};
  std::pair<const void*, int64_t> memory = {grad.unsafeGetTensorImpl(), 0};
  if (grad.has_storage()) memory = {grad.storage().unsafeGetStorageImpl(), grad.storage_offset()};
  return taken_.insert(memory).second ? grad : at::Tensor();
}

}  // namespace pipewright::modules
