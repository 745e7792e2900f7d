#ifndef PIPEWRIGHT_COMMS_COLLECTIVE_LOG_H_
#define PIPEWRIGHT_COMMS_COLLECTIVE_LOG_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
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
  // The device of a call that is not forgotten.
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

// A collective of a group, as one of its members sees it.
struct Collective {
  std::string op;                      // the name of the c10d::Backend method
  int64_t number = 0;                  // from 1; the same on all members
  std::vector<int64_t> input, output;  // sizes of the first tensors
  std::string dtype;
  double seconds = 0;    // when it was called, by steady_seconds()
  bool is_done = false;  // this member has waited for it, on a device the device
  const void* work = nullptr;

  std::string describe() const;  // "allreduce of Float [2, 8]"
};

// What one member of a group has called.
struct GroupState {
  std::string name;
  std::vector<int> members;  // world ranks, by rank in the group
  int64_t issued = 0;        // collectives
  int64_t joined = 0;        // those up to this one; fewer than issued if a device is behind
  int64_t waits_for = 0;     // the number of the one that the host waits for; 0: none
  std::vector<DeviceWait> device_waits;
  std::vector<Collective> last;  // the latest ones
};

// The collectives that one member of a group has called, for reports of hangs and for a comparison
// with what other members have called. Thread-safe; no lock is held during a request to a store.
class CollectiveLog {
 public:
  // `members` are world ranks; `rank` is this member's position among them.
  CollectiveLog(std::string name, int rank, std::vector<int> members);

  // The group is connected, under a name that no other group and no earlier connection has. Forgets
  // what was called before.
  void start(const std::string& connection);
  // The group is aborted: nothing is compared any more.
  void stop();

  // A call on this thread; returns its number. Undefined tensors are those that it does not have.
  int64_t add(const char* op, const at::Tensor& input, const at::Tensor& output);
  // What that call returned; compared, never read.
  void set_work(int64_t number, const void* work);
  // This member begins to wait for the collective that returned `work`; it has waited for it, or a
  // device will, on the current stream of this thread. It stays in that state if the wait fails.
  void begin_wait(const void* work);
  void end_wait(const void* work);

  GroupState state();
  // "allreduce of Float [2, 8], collective 3 of group `dp`, did not end within 2000 ms", if this
  // member waits for a collective that it called so long ago; or empty.
  std::string late(std::chrono::milliseconds timeout);
  // Why the collective that this member waits for cannot end: another member has called a different
  // one. Empty if that is not known. To be called again and again: at most two requests to the
  // store per collective for which this finds the member waiting for a second. For one thread at a
  // time.
  std::string difference(c10d::Store& store);

 private:
  // An event, recorded on this thread's current stream.
  c10::Event recorded(c10::Device device);
  // The number of the collective that returned `work`; 0 if it is not known.
  int64_t number_of(const void* work) const;
  int64_t host_waits_for() const;

  const std::string name_;
  const int rank_;
  const std::vector<int> members_;
  std::mutex mutex_;
  std::string connection_;
  bool is_stopped_ = false;
  int64_t num_issued_ = 0;
  int64_t waits_for_ = 0;
  std::deque<Collective> last_;
  DeviceCollectives on_device_;
  int64_t awaited_ = 0;       // the number of the collective that difference() has found awaited
  double awaited_since_ = 0;  // by steady_seconds()
  int64_t compared_ = 0;      // the number of the last one that it compared
  std::string first_;         // the key of the last one that this member was the first to compare
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_COLLECTIVE_LOG_H_
