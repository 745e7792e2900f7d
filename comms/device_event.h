#ifndef PIPEWRIGHT_COMMS_DEVICE_EVENT_H_
#define PIPEWRIGHT_COMMS_DEVICE_EVENT_H_

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <vector>

// Events that tell how far a device has come, for threads that watch it.

namespace pipewright::comms {

// The calling thread's, on `device`, or on its current device if that has no index.
c10::Stream current_stream(c10::Device device);

// Whether the device has come to the event. A device that has failed has: whoever uses it next gets
// the error, on a thread that can handle it. Does not throw.
bool has_ended(const c10::Event& event) noexcept;

// Events that are recorded again and again. Not thread-safe; record an event after taking it, when
// no lock is held: a host that is far ahead of its device waits there.
class EventPool {
 public:
  c10::Event take(c10::DeviceType type);
  void give_back(c10::Event event) { unused_.push_back(std::move(event)); }

 private:
  std::vector<c10::Event> unused_;
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_DEVICE_EVENT_H_
