#include "pipewright/comms/device_event.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <utility>

namespace pipewright::comms {

c10::Stream current_stream(c10::Device device) {
  const c10::impl::VirtualGuardImpl backend(device.type());
  return backend.getStream(device.has_index() ? device : backend.getDevice());
}

bool has_ended(const c10::Event& event) noexcept {
  try {
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

}  // namespace pipewright::comms
