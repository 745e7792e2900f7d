#ifndef PIPEWRIGHT_FSDP_OFFLOAD_H_
#define PIPEWRIGHT_FSDP_OFFLOAD_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <vector>

namespace pipewright::fsdp {

// Copies between host and device that may be under way. For one thread at a time.
class OffloadCopies {
 public:
  // `device` is the one to compute on. `pin_memory` is without effect if it is the CPU.
  OffloadCopies(bool pin_memory, at::Device device)
      : device_(device), pin_memory_(pin_memory && !device.is_cpu()) {}
  at::Device device() const { return device_; }

  // Flat host memory, page-locked if `pin_memory`.
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
