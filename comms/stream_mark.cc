#include "pipewright/comms/stream_mark.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace pipewright::comms {

using c10::impl::VirtualGuardImpl;

void StreamMark::add(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.is_cpu()) continue;
    const VirtualGuardImpl device(tensor.device().type());
    const c10::Stream stream = device.getStream(tensor.device());
    device.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
    events_.try_emplace(tensor.device(), tensor.device().type()).first->second.record(stream);
  }
}

void StreamMark::block() const {
  for (const auto& [device, event] : events_)
    event.block(VirtualGuardImpl(device.type()).getStream(device));
}

}  // namespace pipewright::comms
