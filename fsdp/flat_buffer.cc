#include "pipewright/fsdp/flat_buffer.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include <functional>
#include <numeric>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace pipewright::fsdp {

constexpr int64_t kAlignment = 64;  // bytes

int64_t numel_of(at::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

int64_t aligned_numel(int64_t numel, int64_t element_size) {
  const int64_t aligned = kAlignment / element_size;
  return (numel + aligned - 1) / aligned * aligned;
}

at::Tensor alias_of(const at::Tensor& flat, int64_t offset, at::IntArrayRef sizes) {
  at::Tensor tensor = at::empty({0}, flat.options());
  tensor.set_(flat.storage(), flat.storage_offset() + offset, sizes);
  return tensor;
}

void free_memory(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, tensor.device()));
  storage->set_nbytes(0);
}

void allocate_memory(const at::Tensor& tensor, int64_t bytes, c10d::Backend* from) {
  const c10::OptionalDeviceGuard guard(tensor.device());  // where the allocator allocates
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (from) {
    // The tensor that the backend returns owns the memory.
    auto* owner = new at::Tensor(from->allocateTensor(bytes, tensor.options().dtype(at::kByte)));
    storage->set_data_ptr_noswap(at::DataPtr(
        owner->mutable_data_ptr(), owner, [](void* held) { delete static_cast<at::Tensor*>(held); },
        tensor.device()));
  } else {
    storage->set_data_ptr_noswap(storage->allocator()->allocate(static_cast<size_t>(bytes)));
  }
  storage->set_nbytes(static_cast<size_t>(bytes));
}

at::Tensor empty_flat(int64_t numel, const at::TensorOptions& options, c10d::Backend* from) {
  return from ? from->allocateTensor(numel, options) : at::empty({numel}, options);
}

}  // namespace pipewright::fsdp
