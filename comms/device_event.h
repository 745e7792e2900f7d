#ifndef PIPEWRIGHT_COMMS_DEVICE_EVENT_H_
#define PIPEWRIGHT_COMMS_DEVICE_EVENT_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <unordered_map>
#include <vector>

namespace pipewright::comms {

// Makes a TCP connection break within 15 s after its other host has vanished, or the link to it. By
// default Linux takes 2 hours to notice that on an idle connection, and 15 minutes on one whose
// data is not acknowledged (tcp(7)). An idle connection is asked for a sign of life after 5 s, and
// every 2 s from then on. A process that only stops keeps its connections, for its kernel answers.
inline void keep_alive(int socket) {
  const auto set = [&](int level, int option, int value) {
    setsockopt(socket, level, option, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(IPPROTO_TCP, TCP_KEEPCNT, 5);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 15000);  // in ms; for data that is not acknowledged
}

// Events that tell how far a device has come, for threads that watch it.

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
