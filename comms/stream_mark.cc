#include "pipewright/comms/stream_mark.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "pipewright/comms/device_event.h"

namespace pipewright::comms {

void StreamMark::add(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.is_cpu()) continue;
    const c10::impl::VirtualGuardImpl device(tensor.device().type());
    const c10::Stream stream = current_stream(tensor.device());
    device.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
    events_.try_emplace(tensor.device(), tensor.device().type()).first->second.record(stream);
  }
}

void StreamMark::block() const {
  for (const auto& [device, event] : events_) event.block(current_stream(device));
}

}  // namespace pipewright::comms
