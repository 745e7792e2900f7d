#ifndef PIPEWRIGHT_TESTS_DEVICE_HOST_ALIAS_H_
#define PIPEWRIGHT_TESTS_DEVICE_HOST_ALIAS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <unordered_map>
#include <vector>

// Host tensors in place of device tensors, so that the host's operators can serve as kernels.

namespace pipewright::testdevice {

bool is_on_device(const at::Tensor& tensor);

// Calls `function` for each tensor in an operator's argument or result.
template <typename Function>
void for_each_tensor(const c10::IValue& value, Function function) {
  if (value.isTensor()) {
    function(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) function(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      if (tensor) function(*tensor);
  }
}

// Replaces the device tensors of one operator call. One device tensor becomes one host tensor, and
// tensors that share memory still do, so `out` may be `self`. Other values stay as they are.
//
// An alias does not own the memory: the device's allocator decides when it is reused, which is one
// of the things under test.
class HostAliases {
 public:
  at::Tensor operator()(const at::Tensor& tensor);
  c10::IValue operator()(const c10::IValue& value);

  virtual ~HostAliases() = default;

 protected:
  // The storage in place of a device tensor's; by default on its memory.
  virtual c10::Storage storage_for(const at::Tensor& tensor) const;
  virtual void fill(const at::Tensor&) const {}

 private:
  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> tensors_;
};

// The same on new memory, to find out what an operator's results look like. The values are valid
// as numbers, probabilities and indices: ones in floating-point tensors, zeros in others.
class HostDummies final : public HostAliases {
 private:
  c10::Storage storage_for(const at::Tensor& tensor) const override;
  void fill(const at::Tensor& tensor) const override;
};

}  // namespace pipewright::testdevice

#endif  // PIPEWRIGHT_TESTS_DEVICE_HOST_ALIAS_H_
