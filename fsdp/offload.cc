#include "pipewright/fsdp/offload.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace pipewright::fsdp {

at::Tensor OffloadCopies::empty_host(int64_t numel, at::ScalarType dtype) const {
  return at::empty({numel}, at::TensorOptions(dtype).device(at::kCPU).pinned_memory(pin_memory_));
}

void OffloadCopies::copy(const at::Tensor& to, const at::Tensor& from) {
  to.copy_(from, /*non_blocking=*/pin_memory_);
  if (!pin_memory_) return;
  std::erase_if(pending_, [](const c10::Event& copied) { return copied.query(); });
  pending_.emplace_back(device_.type());
  pending_.back().record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

void OffloadCopies::wait() {
  for (const c10::Event& copied : pending_) copied.synchronize();
  pending_.clear();
}

}  // namespace pipewright::fsdp
