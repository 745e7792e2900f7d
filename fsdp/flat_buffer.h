#ifndef PIPEWRIGHT_FSDP_FLAT_BUFFER_H_
#define PIPEWRIGHT_FSDP_FLAT_BUFFER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace c10d {
class Backend;
}  // namespace c10d

// One-dimensional buffers in which the parameters or gradients of a group lie one after another.

namespace pipewright::fsdp {

int64_t numel_of(at::IntArrayRef sizes);

// `numel` elements rounded up to a multiple of 64 bytes: where the next parameter of a buffer
// begins. Backends and kernels prefer aligned addresses.
int64_t aligned_numel(int64_t numel, int64_t element_size);

// A tensor of `sizes` in the memory of `flat`, from element `offset` on. It is not a view to
// autograd: writing to it in place does not bump the version counter of `flat`.
at::Tensor alias_of(const at::Tensor& flat, int64_t offset, at::IntArrayRef sizes);

// Frees the memory of a tensor, or allocates it again, without replacing its storage object, which
// autograd may have saved in views.
// `from`: the backend that allocates the memory; null: the allocator of the tensor's device.
void free_memory(const at::Tensor& tensor);
void allocate_memory(const at::Tensor& tensor, int64_t bytes, c10d::Backend* from = nullptr);

// A flat tensor in memory that `from` allocates; null: the allocator of the device.
at::Tensor empty_flat(int64_t numel, const at::TensorOptions& options, c10d::Backend* from);

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_FLAT_BUFFER_H_
