#ifndef PIPEWRIGHT_COMMS_DEVICE_COLLECTIVES_H_
#define PIPEWRIGHT_COMMS_DEVICE_COLLECTIVES_H_

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace pipewright::comms {

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
  // On the current stream of the thread that calls: a call, and the two sides of a wait.
  void called(int64_t number, at::Device device);
  void begin_wait(int64_t number);
  void end_wait(int64_t number);
  // Forgets all of them.
  void clear();

  struct State {
    std::optional<int64_t> joined;      // the device has joined those up to this; nullopt: all
    int64_t waits_for = 0;              // the number of the first one that it waits for; 0: none
    std::optional<c10::Stream> stream;  // which waits
  };
  // Of collectives that were called before `until`, by steady_seconds(). Forgets those that have
  // ended.
  State state(double until);
  // Whether the device may not have ended this one.
  bool is_pending(int64_t number);

 private:
  struct Call {
    int64_t number;
    at::Device device;
    double seconds;
    c10::Event joined;
    std::optional<c10::Event> reached, passed;
    std::optional<c10::Stream> stream;  // of the wait
  };
  c10::Event record(const c10::Stream& stream);
  Call* find(int64_t number);
  static bool has_passed(const Call& call);
  template <typename Predicate>
  void forget(const Predicate& is_over);

  std::deque<Call> calls_;  // in order
  std::vector<c10::Event> unused_;
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_DEVICE_COLLECTIVES_H_
