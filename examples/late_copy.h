#ifndef PIPEWRIGHT_EXAMPLES_LATE_COPY_H_
#define PIPEWRIGHT_EXAMPLES_LATE_COPY_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>

namespace pipewright::examples {

// The values of a tensor, copied to the host without a wait for its device: to read them at once,
// as Tensor::item() does, the host waits until the device has done all that was queued before, and
// then the device waits for the host.
class LateCopy {
 public:
  explicit LateCopy(const at::Tensor& tensor);

  // Whether wait() would return at once. On a CPU always.
  bool is_there() const;
  // The values. Blocks until they are there.
  const at::Tensor& wait() const;

 private:
  at::Tensor host_;
  std::optional<c10::Event> end_;  // of the copy
};

// Copies a tensor of the CPU to `device` without a wait for it. The same tensor if that is the CPU.
at::Tensor to_device(const at::Tensor& host, at::Device device);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_LATE_COPY_H_
