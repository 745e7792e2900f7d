#ifndef PIPEWRIGHT_COMMS_ABORTABLE_WAITS_H_
#define PIPEWRIGHT_COMMS_ABORTABLE_WAITS_H_

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace pipewright::comms {

// The waits for one Gloo group's operations, all of which abort() ends.
//
// Closing a group's connections is not enough. When a connection breaks, Gloo tells whoever waits
// for a message that has not begun, but forgets the one that is being sent or received
// (tcp::Pair::signalException). Whoever waits for that one waits until its time limit. Thread-safe.
class AbortableWaits : public std::enable_shared_from_this<AbortableWaits> {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // Return a Work that is `work`, except that its wait() throws std::runtime_error once abort() has
  // been called, unless `work` has ended by then. A SEND's or RECV's own abort() must end its
  // wait(), as for torch's; a collective must have a future.
  WorkPtr transfer(WorkPtr work);
  WorkPtr collective(WorkPtr work);

  void abort();

 private:
  class Transfer;
  class Collective;

  std::mutex mutex_;
  std::condition_variable changed_;  // a collective has ended, or aborted_
  bool aborted_ = false;
  std::multiset<c10d::Work*> awaited_;  // SENDs and RECVs
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_ABORTABLE_WAITS_H_
