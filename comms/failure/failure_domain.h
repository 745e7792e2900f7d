#ifndef PIPEWRIGHT_COMMS_FAILURE_FAILURE_DOMAIN_H_
#define PIPEWRIGHT_COMMS_FAILURE_FAILURE_DOMAIN_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "pipewright/comms/failure/lifeline.h"

// The ranks of a world fail together. A rank that fails publishes its cause in the store, once for
// the whole world: the first cause wins. One thread per process, the Watcher, looks for it ten
// times a second and aborts every group of its ranks, so that whatever they wait for ends with an
// error.
//
//   domain.fail("out of luck");  // on rank 2; every rank's waits end, and
//   domain.cause();              // is "rank 2, step 1, action 5 `2F2`: out of luck\n  rank 2: ..."
//
// A rank that is killed cannot publish. Its sockets break, rank 0 or a peer that waits for it
// publishes that, and a roll call finds who does not answer: every watcher answers for its ranks.
// If the killed rank hosted the store, the watchers lose the store, which is a cause of its own
// during a step; so they do if the store does not answer within its time limit (bounded_store.h).
//
// On a device a step returns while its work is still queued, and a host that waits for work that
// never ends cannot notice it. So the watcher also checks that work ends in time: expect_by().
//
// A hang is a failure that only a time limit tells of: the rank that notices it is rarely the one
// that causes it. A StepObserver, asked by the watcher's thread because the rank's own thread may
// be stuck, says where each rank is, and all of them together tell the culprit. The watcher prints
// the report to stderr and writes it for torchrun (error_file.h).
//
// A failure is final until all ranks of the world call reset().

namespace pipewright::comms {

class FailureDomain;

// What a rank's step says of itself while the rank's own thread may be stuck. Called by the
// watcher's thread, or by a thread that has failed: implementations are thread-safe. Must not
// throw.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  // Why this rank hangs; empty as long as it makes progress.
  virtual std::string stalled() = 0;
  // Where this rank is, for verdict().
  virtual std::string report() = 0;
  // Who causes a hang, and where all ranks are, as indented lines. `reports` are the reports of all
  // ranks of the world, nullopt for those that do not answer; `who` names a rank's host and
  // process.
  using Reports = std::vector<std::optional<std::string>>;
  using Who = std::function<std::string(int rank)>;
  virtual std::string verdict(const Reports& reports, const Who& who) = 0;
  // A report is due: of a hang, or because somebody asked for it.
  virtual void dump() = 0;
  // The rank has not left its step, long after `report` of a hang.
  virtual void stuck(const std::string& report) = 0;
};

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
  void tick();

  std::mutex domains_mutex_;  // held during a tick
  std::vector<FailureDomain*> domains_;
  std::mutex wake_mutex_;
  std::condition_variable woken_;
  bool wake_ = false;
  bool stop_ = false;
  std::string printed_;      // the last report of a hang
  int dumps_requested_ = 0;  // as far as it has been seen
  std::thread thread_;
};

// One rank's membership in the failure domain of its world. Thread-safe.
class FailureDomain : public std::enable_shared_from_this<FailureDomain> {
 public:
  using StorePtr = c10::intrusive_ptr<c10d::Store>;

  // `watcher` is shared by the ranks of this process. `hosts_store`: the store ends with this
  // process. `abort` aborts this rank's groups; it is called on any thread, after a failure.
  // `lifeline`: see set_lifeline().
  FailureDomain(int rank, int size, StorePtr store, std::shared_ptr<Watcher> watcher,
                bool hosts_store, std::function<void()> abort,
                std::shared_ptr<Lifeline> lifeline = nullptr);
  FailureDomain(const FailureDomain&) = delete;
  FailureDomain& operator=(const FailureDomain&) = delete;

  // What the rank's world owns: its last copy leaves the domain. That is not left to the
  // destructor, because the last reference may be one that the watcher's thread holds for a moment,
  // and leaving waits for that thread. References by weak_from_this() do not count.
  static std::shared_ptr<FailureDomain> owned(std::shared_ptr<FailureDomain> domain);

  // Tells of the ends of other ranks' processes. Null: nobody does.
  void set_lifeline(std::shared_ptr<Lifeline> lifeline);

  // How errors name this rank besides its number, such as "pp 1, dp 0".
  void set_coordinates(const std::string& coordinates);
  // Where this rank is while a step runs, such as "step 1, action 5 `2F2`". `place` is called on
  // the thread that fails. An empty function: no step runs.
  void set_place(std::function<std::string()> place);

  // What the watcher's thread calls at each tick, with its connection to the store: this rank fails
  // with the result unless it is empty. Must be able to run until this object ends.
  void set_check(std::function<std::string(c10d::Store&)> check);

  // Who reports on this rank's steps. Null: nobody.
  void set_observer(std::shared_ptr<StepObserver> observer);

  // The first cause of the world, as far as this process knows; empty while it is healthy.
  std::string cause() const;
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Whether the first cause is a hang.
  bool hung() const;
  // Throws std::runtime_error with the cause, if there is one.
  void throw_if_failed() const;
  // The same, also if a cause is in the store that this rank's watcher has not seen yet.
  void throw_if_published();

  // This rank has failed: publishes "rank R, <place>: message" unless another failure was first,
  // and aborts this process's groups. Returns this rank's own text. Does not throw.
  enum class Kind { kError, kHang };
  std::string fail(const std::string& message, Kind kind = Kind::kError);
  // Runs a part of connecting this rank, outside of a step. If it throws, this rank has failed.
  // Throws the first cause of the world then, or what `part` has thrown if it is that.
  void connect(const std::function<void()>& part);
  // Work that a step has queued on a device must end within `limit`, counted from the end of the
  // work of the call before. Until `unfinished`, which the watcher's thread calls at each tick,
  // returns an empty string, the work has not ended; after `limit` what it returns is the message
  // of a hang. A rank's work must end in the order of these calls.
  void expect_by(std::function<std::string()> unfinished, std::chrono::milliseconds limit);

  // After a failure: the first cause, followed by the ranks that do not answer and, after a hang,
  // by the observer's verdict. Waits for all ranks' answers, but at most 1.5 s. All ranks get the
  // same text as long as the store lives, so its host waits, again at most 1.5 s, until those that
  // answered have got it. What this rank's fail() returned, `own`, comes last, unless it is the
  // first cause or only repeats it.
  std::string explain(const std::string& own = "");

  // Blocks until `key` is in the store, and returns its value. Throws std::runtime_error if the
  // world fails, or with the text `late` after `timeout`; the key then has the value kReleased,
  // unless it had one. Two requests, however long it takes. A wait occupies its connection to the
  // store: the world's for one thread at a time, and for any other thread a `connection` of its
  // own, a clone of World::store().
  static constexpr const char* kReleased = "!";
  std::string wait_for(const std::string& key, std::chrono::milliseconds timeout,
                       const std::string& late, c10d::Store* connection = nullptr);

  // As long as it lives, this rank waits for others, maybe outside of a step: then the end of
  // another rank's process is a failure, and not how a program ends.
  class Waiting {
   public:
    // Null: has no effect.
    explicit Waiting(std::shared_ptr<FailureDomain> domain);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    const std::shared_ptr<FailureDomain> domain_;
  };

  // Collective over all ranks of the world, after a failure: waits until every rank has called it,
  // and starts again without a cause, and with new lifelines. Returns the smallest `value` of any
  // rank. Throws std::runtime_error that names a rank that did not call it within `timeout`, or
  // this one if it cannot reach rank 0.
  int64_t reset(int64_t value, std::chrono::milliseconds timeout);
  // The number of resets so far, the same on all ranks.
  int generation() const;

  // Called by the watcher. Returns the report of a hang, once, when it is there.
  std::optional<std::string> tick();
  void dump();

 private:
  // Work that must be done by `deadline`, `limit` after it could begin.
  struct Expected {
    std::function<std::string()> unfinished;
    std::chrono::milliseconds limit;
    std::chrono::steady_clock::time_point deadline;
  };

  // A clean end: the watcher no longer uses this, and the others learn that this rank needs nothing
  // more. The host of the store gives them 300 ms to notice, and after a failure up to 4 s more to
  // those that have not connected yet: nobody else could tell them.
  void leave();

  std::shared_ptr<StepObserver> observer() const;
  std::shared_ptr<Lifeline> lifeline() const;
  std::string key(const std::string& name) const;
  static std::string key(const std::string& name, int generation);
  std::string fail(const std::string& message, Kind kind, int generation);
  std::string publish(const std::string& own, Kind kind, int generation);
  void check_expected(int generation);
  void check_progress(int generation);
  void check_collectives(int generation);
  void check_lifeline(int generation);
  bool waits_for_others() const;
  std::optional<std::string> report_hang();
  std::string explain_first();
  void await_readers(int generation);
  std::string absent_and_verdict(const std::string& first, int generation);
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
  std::string explained_;  // what explain_first() returned; empty until it has
  std::function<std::string()> place_;
  int waiting_ = 0;                     // the number of Waiting
  std::multiset<std::string> awaited_;  // the keys that wait_for() waits for, by any thread
  std::function<std::string(c10d::Store&)> check_;
  std::deque<Expected> expected_;  // the oldest first
  bool hung_ = false;
  std::shared_ptr<StepObserver> observer_;
  std::shared_ptr<Lifeline> lifeline_;
  // Only used by the watcher.
  bool host_left_ = false;
  std::optional<std::chrono::steady_clock::time_point> hung_at_;
  std::string hang_;  // the report; empty before it is complete
  bool stuck_ = false;
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_FAILURE_FAILURE_DOMAIN_H_
