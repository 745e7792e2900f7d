#include "examples/late_copy.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace pipewright::examples {

LateCopy::LateCopy(const at::Tensor& tensor) {
  if (tensor.is_cpu()) {
    host_ = tensor;
    return;
  }
  host_ = at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
  host_.copy_(tensor, /*non_blocking=*/true);
  const c10::impl::VirtualGuardImpl streams(tensor.device().type());
  end_.emplace(tensor.device().type());
  end_->record(streams.getStream(tensor.device()));
}

bool LateCopy::is_there() const { return !end_ || end_->query(); }

const at::Tensor& LateCopy::wait() const {
  if (end_) end_->synchronize();
  return host_;
}

at::Tensor to_device(const at::Tensor& host, at::Device device) {
  return device.is_cpu() ? host : host.pin_memory().to(device, /*non_blocking=*/true);
}

}  // namespace pipewright::examples
