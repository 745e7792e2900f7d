#ifndef PIPEWRIGHT_COMMS_DEVICE_COLLECTIVES_H_
#define PIPEWRIGHT_COMMS_DEVICE_COLLECTIVES_H_

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "pipewright/comms/device_event.h"

namespace pipewright::comms {

// A collective that a stream of a device waits for.
struct DeviceWait {
  int64_t number;
  c10::Stream stream;
};

// How far a device has come in the collectives of a group. On a device neither a call nor a wait
// blocks the host, which may be a step ahead, so events tell: one where a collective is called, and
// one on either side of the wait for it.
//
//   stream of the call    ... joined |
//   stream of the wait    ... reached |  waits  | passed ...
//
// A device has joined a collective when the stream on which it was called gets there, and waits for
// it between `reached` and `passed`. For one thread at a time.
class DeviceCollectives {
 public:
  // An event to record at a call, or on either side of a wait.
  c10::Event take_event(c10::Device device) { return events_.take(device.type()); }
  // A call, and the two sides of a wait, with what has been recorded there.
  void called(int64_t number, c10::Device device, c10::Event joined);
  void begin_wait(int64_t number, const c10::Stream& stream, c10::Event reached);
  void end_wait(int64_t number, c10::Event passed);
  // Of a call that is not forgotten.
  std::optional<c10::Device> device_of(int64_t number) const;
  // Forgets all of them.
  void clear();

  struct State {
    std::optional<int64_t> joined;  // the device has joined those up to this; nullopt: all
    std::vector<DeviceWait> waits;  // by number
  };
  // Forgets those that have ended.
  State state();
  // Whether the device may not have ended this one.
  bool is_pending(int64_t number) const;

 private:
  struct Call {
    int64_t number;
    c10::Device device;
    c10::Event joined;
    std::optional<c10::Event> reached, passed;
    std::optional<c10::Stream> stream;  // of the wait
  };
  const Call* find(int64_t number) const;
  Call* find(int64_t number);
  static bool has_passed(const Call& call);
  void recycle(Call* call);

  std::deque<Call> calls_;  // in order
  EventPool events_;
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_DEVICE_COLLECTIVES_H_
