#ifndef PIPEWRIGHT_FSDP_OFFLOAD_H_
#define PIPEWRIGHT_FSDP_OFFLOAD_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <vector>

namespace pipewright::fsdp {

// Stores shards, their gradients and so the optimizer's state in host memory: PyTorch's
// CPUOffloadPolicy. Each gather copies the shards to the device, each reduction copies its result
// to the host. Clipping and the optimizer run on the host.
// Parameters on the meta device must be allocated on the host; the device to compute on is then the
// one that the group is bound to.
struct CPUOffloadPolicy {
  // Page-locked host memory: copies do not block the host, which waits for them at the end of
  // backward. Without effect on modules that compute on the CPU.
  bool pin_memory = true;
};

// Copies between host and device that may be under way. For one thread at a time.
class OffloadCopies {
 public:
  // `device` is the one to compute on.
  OffloadCopies(const CPUOffloadPolicy& policy, at::Device device)
      : device_(device), pin_memory_(policy.pin_memory && !device.is_cpu()) {}
  at::Device device() const { return device_; }

  // Flat host memory, page-locked if the policy says so.
  at::Tensor empty_host(int64_t numel, at::ScalarType dtype) const;
  // Copies `from` to `to`, on the current stream of the device. If the host's end is page-locked
  // the host does not wait, and must not read or write it before wait().
  void copy(const at::Tensor& to, const at::Tensor& from);
  // Makes the host wait for all copies.
  void wait();

 private:
  const at::Device device_;
  const bool pin_memory_;
  std::vector<c10::Event> pending_;
};

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_OFFLOAD_H_
