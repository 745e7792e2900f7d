#ifndef PIPEWRIGHT_COMMS_STREAM_MARK_H_
#define PIPEWRIGHT_COMMS_STREAM_MARK_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <unordered_map>
#include <vector>

namespace pipewright::comms {

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

#endif  // PIPEWRIGHT_COMMS_STREAM_MARK_H_
