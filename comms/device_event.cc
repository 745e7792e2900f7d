#include "pipewright/comms/device_event.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <utility>

namespace pipewright::comms {

c10::Stream current_stream(c10::Device device) {
  const c10::impl::VirtualGuardImpl backend(device.type());
  return backend.getStream(device.has_index() ? device : backend.getDevice());
}

void use_on_current_stream(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return;
  const c10::impl::VirtualGuardImpl device(tensor.device().type());
  device.recordDataPtrOnStream(tensor.storage().data_ptr(), current_stream(tensor.device()));
}

bool has_ended(const c10::Event& event) noexcept {
  try {
    const c10::OptionalDeviceGuard guard(event.device());
    return event.query();
  } catch (const std::exception&) {
    return true;
  }
}

c10::Event EventPool::take(c10::DeviceType type) {
  if (unused_.empty()) return c10::Event(type);
  c10::Event event = std::move(unused_.back());
  unused_.pop_back();
  return event;
}

void StreamMark::add(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.is_cpu()) continue;
    use_on_current_stream(tensor);
    c10::Event& event = events_.try_emplace(tensor.device(), tensor.device().type()).first->second;
    event.record(current_stream(tensor.device()));
  }
}

void StreamMark::block() const {
  for (const auto& [device, event] : events_) event.block(current_stream(device));
}

}  // namespace pipewright::comms
