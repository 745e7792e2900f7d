#ifndef PIPEWRIGHT_COMMS_DEVICE_EVENT_H_
#define PIPEWRIGHT_COMMS_DEVICE_EVENT_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <unordered_map>
#include <vector>

namespace pipewright::comms {

// Events that tell how far a device has come, for threads that watch it.

// The calling thread's, on `device`, or on its current device if that has no index.
c10::Stream current_stream(c10::Device device);

// Tells the device's allocator that the current stream uses the tensor's memory, so that it is not
// given away before that stream has come to this point. To be called before the last reference to
// memory is dropped that another stream has allocated. Does nothing for tensors on the CPU.
void use_on_current_stream(const at::Tensor& tensor);

// Whether the device has come to the event. A device that has failed has: whoever uses it next gets
// the error, on a thread that can handle it. Does not throw. Any thread: on one that has set no
// device, a query would create a context on GPU 0, which costs every rank some 500 MiB there.
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

// A point in the current streams of the thread that creates it, one event per device. Built from
// c10's device-generic Stream and Event, so one code path serves every device; CPU tensors have no
// stream and need no event. Never blocks the host.
//
//   StreamMark ready;
//   ready.add({tensor});  // on the thread that writes `tensor`
//   ready.block();        // on another thread, before its current stream reads `tensor`
class StreamMark {
 public:
  // Records the current stream of each tensor's device, and tells the device's allocator that the
  // stream uses the tensor's memory.
  void add(const std::vector<at::Tensor>& tensors);

  // Makes the calling thread's current streams wait until the recorded streams reach this point.
  void block() const;

  bool empty() const { return events_.empty(); }

 private:
  std::unordered_map<c10::Device, c10::Event> events_;
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_DEVICE_EVENT_H_
