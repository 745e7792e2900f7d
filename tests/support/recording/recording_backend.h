#ifndef PIPEWRIGHT_TESTS_SUPPORT_RECORDING_RECORDING_BACKEND_H_
#define PIPEWRIGHT_TESTS_SUPPORT_RECORDING_RECORDING_BACKEND_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/comms/world.h"

// A decorator for any c10d backend that records every call, and delays, reorders or fails some. For
// tests only (the target is testonly): tests count what a program communicates, and show that
// results do not depend on timing.
//
//   const auto log = std::make_shared<CallLog>();
//   World recorded =
//       world.wrapped([&](const BackendPtr& backend) { return record(backend, log); });
//   ...
//   EXPECT_EQ(log->count("allreduce"), 2);

namespace pipewright::comms {

struct CallRecord {
  int rank;            // the caller's rank in the group
  std::string op;      // the name of the c10d::Backend method
  int64_t bytes = 0;   // size of its first argument
  int peer = -1;       // of send and recv
  int tag = 0;         // of send and recv
  int64_t number = 0;  // of the call among those of this op on this rank, from 1
};

// Thread-safe. Ranks may share one log.
class CallLog {
 public:
  // Numbers the call, stores it and returns it.
  CallRecord add(CallRecord call);
  // All calls, in the order in which they were made.
  std::vector<CallRecord> calls() const;
  // The number of calls of `op` on all ranks, and the bytes of their first arguments.
  int64_t count(const std::string& op) const;
  int64_t bytes(const std::string& op) const;
  void clear();

 private:
  mutable std::mutex mutex_;
  std::vector<CallRecord> calls_;
  std::map<std::pair<int, std::string>, int64_t> numbers_;
};

// What to inject into a call.
struct Fault {
  std::chrono::microseconds delay{0};       // before the call is forwarded
  std::chrono::microseconds work_delay{0};  // from the call until its Work may complete
  bool hold = false;       // forward after the next call of the backend, or when its Work is used
  bool refuse = false;     // throw std::runtime_error instead of forwarding the call
  bool fail_work = false;  // forward the call; its Work fails with std::runtime_error
};
// Called for every recorded call, on the thread that makes it.
using Injector = std::function<Fault(const CallRecord&)>;

// Wraps `backend`. Calls that return no Work are forwarded without a record. The group's
// description and bound device are copied when it is wrapped. `injector` may be null. The backend
// is for one thread at a time, like the one it wraps.
BackendPtr record(const BackendPtr& backend, std::shared_ptr<CallLog> log,
                  Injector injector = nullptr);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_TESTS_SUPPORT_RECORDING_RECORDING_BACKEND_H_
