#ifndef PIPEWRIGHT_COMMS_RECORDING_BACKEND_H_
#define PIPEWRIGHT_COMMS_RECORDING_BACKEND_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/comms/world.h"

// Any backend, with every call written down, and some delayed, put behind the next one, or failed:
// to count what a program sends, and to show that results do not depend on luck.

namespace pipewright::comms {

struct CallRecord {
  int rank;            // in its group
  std::string op;      // the name of c10d::Backend's method
  int64_t bytes = 0;   // of its first argument
  int peer = -1;       // of send and recv
  int tag = 0;         // of send and recv
  int64_t number = 0;  // of this op on this rank, from 1
};

// Any thread. Ranks may share one.
class CallLog {
 public:
  // Numbers the call, and keeps it.
  CallRecord add(CallRecord call);
  // In the order in which they were made.
  std::vector<CallRecord> calls() const;
  // How many of an op, and the bytes of their first arguments, on all ranks.
  int64_t count(const std::string& op) const;
  int64_t bytes(const std::string& op) const;
  void clear();

 private:
  mutable std::mutex mutex_;
  std::vector<CallRecord> calls_;
  std::map<std::pair<int, std::string>, int64_t> numbers_;
};

// What happens to a call.
struct Fault {
  std::chrono::microseconds delay{0};       // before it is passed on
  std::chrono::microseconds work_delay{0};  // from the call until its Work may end
  bool hold = false;    // passed on behind the next call of its backend, or when its Work is asked
  bool refuse = false;  // throws, and is not passed on
  bool fail_work = false;  // passed on, and its Work fails
};
// Asked on the thread of the rank.
using Injector = std::function<Fault(const CallRecord&)>;

// Wraps a backend; a call that returns no Work is passed on unrecorded. Group description and
// bound device are taken over when it is made. An injector may be null.
BackendPtr record(const BackendPtr& backend, std::shared_ptr<CallLog> log,
                  Injector injector = nullptr);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_RECORDING_BACKEND_H_
