#ifndef PIPEWRIGHT_TESTS_DEVICE_MEMORY_H_
#define PIPEWRIGHT_TESTS_DEVICE_MEMORY_H_

#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <vector>

#include "tests/device/machine.h"

// Memory with the rules of CUDA's caching allocator. A block belongs to the stream on which it was
// allocated. The host frees it while kernels that use it may still be queued, and the next
// allocation of its size on its stream gets it at once: stream order protects it from that stream,
// but from no other. recordStream() delays the reuse until the other stream has passed the point at
// which the block was freed.
//
// New and freed memory is poisoned (0xff: NaN, or -1). Freeing counts as a write on the block's
// stream, so the race detector reports a missing recordStream even if nothing went wrong.

namespace pipewright::testdevice {

c10::DeviceAllocator& device_allocator();
// Page-locked host memory: only copies from and to it are asynchronous.
c10::Allocator& pinned_allocator();
bool is_pinned(const void* data);

// Allocates on the current stream of device `device`.
c10::DataPtr allocate_on(int device, size_t bytes);
// The block that contains an address, or null.
Block* block_of(const void* data);
// Resizes a storage on the device like CUDA's resize_: a new block, and a copy on the current
// stream.
void resize_storage(const c10::Storage& storage, size_t bytes);

// The bytes of device tensors that an operation reads or writes; host tensors have none.
void add_uses(std::vector<Use>& uses, const std::vector<at::Tensor>& tensors, bool write);
std::vector<Use> uses_of(const std::vector<at::Tensor>& reads,
                         const std::vector<at::Tensor>& writes);

// Returns memory that no tensor has to the system. Nothing may be queued.
void release_free_blocks();

void poison(void* memory, size_t bytes);

}  // namespace pipewright::testdevice

#endif  // PIPEWRIGHT_TESTS_DEVICE_MEMORY_H_
