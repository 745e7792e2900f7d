#ifndef PIPEWRIGHT_COMMS_FAILURE_DOMAIN_H_
#define PIPEWRIGHT_COMMS_FAILURE_DOMAIN_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

// The ranks of a world fail together. A rank that fails publishes its cause in the store, once for
// the whole world: the first cause wins. One thread per process, the Watcher, looks for it ten
// times a second and aborts every group of its ranks, so that whatever they wait for ends with an
// error.
//
//   domain.fail("out of luck");  // on rank 2; every rank's waits end, and
//   domain.cause();              // is "rank 2, step 1, action 5 `2F2`: out of luck\n  rank 2: ..."
//
// A rank that is killed cannot publish. Its sockets break, a peer that waits for it publishes that,
// and a roll call finds who does not answer: every watcher answers for its ranks. If the killed
// rank hosted the store, the watchers lose the store, which is a cause of its own during a step; so
// they do if the store does not answer within its time limit (bounded_store.h).
//
// On a device a step returns while its work is still queued, and a host that waits for work that
// never ends cannot notice it. So the watcher also checks that work ends in time: expect_by().
//
// A failure is final until all ranks of the world call reset().

namespace pipewright::comms {

class FailureDomain;

// The thread that watches the domains of one process.
class Watcher {
 public:
  Watcher() = default;
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // The first add() starts the thread. remove() returns when the thread no longer uses the domain.
  void add(FailureDomain* domain);
  void remove(FailureDomain* domain);
  // Looks now instead of at the next tick.
  void wake();

 private:
  void run();

  std::mutex domains_mutex_;  // held during a tick
  std::vector<FailureDomain*> domains_;
  std::mutex wake_mutex_;
  std::condition_variable woken_;
  bool wake_ = false;
  bool stop_ = false;
  std::thread thread_;
};

// One rank's membership in the failure domain of its world. Thread-safe.
class FailureDomain {
 public:
  using StorePtr = c10::intrusive_ptr<c10d::Store>;

  // `watcher` is shared by the ranks of this process. `hosts_store`: the store ends with this
  // process. `abort` aborts this rank's groups; it is called on any thread, after a failure.
  FailureDomain(int rank, int size, StorePtr store, std::shared_ptr<Watcher> watcher,
                bool hosts_store, std::function<void()> abort);
  // A clean end: tells the others that this rank needs nothing more. The host of the store gives
  // them 300 ms to notice.
  ~FailureDomain();
  FailureDomain(const FailureDomain&) = delete;
  FailureDomain& operator=(const FailureDomain&) = delete;

  // How errors name this rank besides its number, such as "pp 1, dp 0".
  void set_coordinates(const std::string& coordinates);
  // Where this rank is while a step runs, such as "step 1, action 5 `2F2`". `place` is called on
  // the thread that fails. An empty function: no step runs.
  void set_place(std::function<std::string()> place);

  // The first cause of the world, as far as this process knows; empty while it is healthy.
  std::string cause() const;
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Throws std::runtime_error with the cause, if there is one.
  void throw_if_failed() const;

  // This rank has failed: publishes "rank R, <place>: message" unless another failure was first,
  // and aborts this process's groups. Returns this rank's own text. Does not throw.
  std::string fail(const std::string& message);
  // Sets a time limit for work that a step has queued on a device. When `limit` is over, the
  // watcher's thread calls `unfinished`, which returns an empty string if the work has ended. This
  // rank fails with any other string as its message. A rank's work must end in the order of these
  // calls, because not all of them are checked: of those made while one is pending, only the last.
  void expect_by(std::function<std::string()> unfinished, std::chrono::milliseconds limit);

  // After a failure: the first cause, followed by the ranks that do not answer. Waits for all
  // ranks' answers, but at most 1.5 s. All ranks get the same text as long as the store lives.
  std::string explain();

  // Blocks until `key` is in the store, and returns its value. Throws std::runtime_error if the
  // world fails, or with the text `late` after `timeout`; the key then has the value kReleased,
  // unless it had one. Two requests, however long it takes. For one thread at a time.
  static constexpr const char* kReleased = "!";
  std::string wait_for(const std::string& key, std::chrono::milliseconds timeout,
                       const std::string& late);

  // Collective over all ranks of the world, after a failure: waits until every rank has called it,
  // and starts again without a cause. Returns the smallest `value` of any rank. Throws
  // std::runtime_error that names the ranks that did not call it within `timeout`.
  int64_t reset(int64_t value, std::chrono::milliseconds timeout);
  // The number of resets so far, the same on all ranks.
  int generation() const;

  // Called by the watcher.
  void tick();

 private:
  // Work that must be done by `deadline`.
  struct Expected {
    std::function<std::string()> unfinished;
    std::chrono::steady_clock::time_point deadline;
  };

  std::string key(const std::string& name) const;
  std::string publish(const std::string& own);
  void check_expected();
  void learn(const std::string& cause, int generation);
  void answer();
  void release();
  void abort_groups(int generation);
  void lose_store(int generation);

  const int rank_;
  const int size_;
  const StorePtr store_;
  const StorePtr watch_store_;  // a second connection, because a blocking wait occupies the first
  const std::shared_ptr<Watcher> watcher_;
  const bool hosts_store_;
  const std::function<void()> abort_;
  std::atomic<bool> failed_ = false;

  std::mutex abort_mutex_;  // held while groups are aborted: reset() must not overtake that
  mutable std::mutex mutex_;
  int generation_ = 0;
  std::string cause_;
  std::function<std::string()> place_;
  std::string awaited_;  // the key that wait_for() waits for
  std::optional<Expected> oldest_expected_, newest_expected_;
  bool host_left_ = false;  // only used by the watcher
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_FAILURE_DOMAIN_H_
