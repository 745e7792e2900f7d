#include "tests/device/host_alias.h"

#include <ATen/ATen.h>

#include <cstring>

#include "tests/device/machine.h"

namespace pipewright::testdevice {

bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kDeviceType;
}

at::Tensor HostAliases::operator()(const at::Tensor& tensor) {
  if (!is_on_device(tensor)) return tensor;
  at::Tensor& alias = tensors_[tensor.unsafeGetTensorImpl()];
  if (alias.defined()) return alias;
  c10::Storage& storage = storages_[tensor.storage().unsafeGetStorageImpl()];
  if (!storage) storage = storage_for(tensor);
  alias = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  c10::TensorImpl* impl = alias.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  // copy_ gets views whose conjugation or negation is pending.
  if (tensor.is_conj()) impl->_set_conj(true);
  if (tensor.is_neg()) impl->_set_neg(true);
  fill(alias);
  return alias;
}

c10::IValue HostAliases::operator()(const c10::IValue& value) {
  if (value.isTensor()) return (*this)(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back((*this)(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional((*this)(*tensor)) : std::nullopt);
    return list;
  }
  if (value.isDevice() && value.toDevice().type() == kDeviceType) return c10::Device(c10::kCPU);
  return value;
}

c10::Storage HostAliases::storage_for(const at::Tensor& tensor) const {
  return {c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
          c10::DataPtr(tensor.storage().mutable_data(), c10::Device(c10::kCPU))};
}

c10::Storage HostDummies::storage_for(const at::Tensor& tensor) const {
  const size_t bytes = tensor.storage().nbytes();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::GetAllocator(c10::kCPU), true);
  std::memset(storage.mutable_data(), 0, bytes);
  return storage;
}

void HostDummies::fill(const at::Tensor& tensor) const {
  if (at::isFloatingType(tensor.scalar_type()) && tensor.is_non_overlapping_and_dense())
    tensor.fill_(1);
}

}  // namespace pipewright::testdevice
