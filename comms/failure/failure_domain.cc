// Agreement on the first failure of a world, through its store.
//
// Idea: the key failure/G of generation G is written by compareSet, so the first writer wins and
// every later one learns what it lost to. A rank publishes before it aborts its groups. So whoever
// is woken by an aborted group, or by a socket that a peer closed for this reason, finds the cause
// in the store already, and never takes a victim for the cause. Ranks that wait for nobody who has
// failed are woken by their own watcher.
//
// Invariant: cause_ is empty or equal to failure/G on every rank, except where the store is gone:
// then it says so. Groups are aborted after cause_ is set. reset() raises G once all ranks have
// arrived, so a late writer of an old generation cannot fail the new one: it writes to the old key.
//
// Complexity: one store request per rank and tick, whether there is news/G, so that rank 0's store,
// which has one thread, serves thousands of ranks; on a failure a few per rank. Whoever writes
// failure/G, or is the host of the store and leaves, writes news/G afterwards.
#include "pipewright/comms/failure/failure_domain.h"

#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "pipewright/comms/process/environment.h"
#include "pipewright/comms/process/sockets.h"
#include "pipewright/comms/torch_gaps/bounded_store.h"

namespace pipewright::comms {
namespace {

constexpr std::chrono::milliseconds kLeave{300};
constexpr std::chrono::milliseconds kArrival{4000};
constexpr char kHangMark = '\x01';  // starts the value of a failure that is a hang
constexpr int kPatience = 16;

using Clock = std::chrono::steady_clock;

}  // namespace

FailureDomain::FailureDomain(int rank, int size, StorePtr store, std::shared_ptr<Watcher> watcher,
                             bool hosts_store, std::function<void()> abort,
                             std::shared_ptr<Lifeline> lifeline)
    : rank_(rank),
      size_(size),
      store_(std::move(store)),
      watch_store_(store_->clone()),
      watcher_(std::move(watcher)),
      hosts_store_(hosts_store),
      abort_(std::move(abort)),
      lifeline_(std::move(lifeline)) {
  set_coordinates("");
  if (size_ > 1) watcher_->add(this);
}

std::shared_ptr<FailureDomain> FailureDomain::owned(std::shared_ptr<FailureDomain> domain) {
  FailureDomain* const self = domain.get();
  return {self, [domain = std::move(domain)](FailureDomain*) { domain->leave(); }};
}

void FailureDomain::leave() {
  if (size_ == 1) return;
  watcher_->remove(this);
  try {
    const int64_t left = watch_store_->add("domain/left", 1);
    if (!hosts_store_ || left == size_) return;
    const auto all_left = [&] { return watch_store_->add("domain/left", 0) >= size_; };
    if (failed()) {
      std::vector<std::string> all;
      for (int rank = 0; rank < size_; ++rank) all.push_back("domain/who/" + std::to_string(rank));
      poll(kArrival, kPatience, [&] { return watch_store_->check(all) || all_left(); });
    }
    watch_store_->set("domain/host_left", "1");
    watch_store_->set(key("news"), "1");
    poll(kLeave, kPatience, all_left);
  } catch (const std::exception&) {  // the store is gone: nobody is left to tell
  }
}

void FailureDomain::set_coordinates(const std::string& coordinates) {
  try {
    watch_store_->set("domain/who/" + std::to_string(rank_),
                      (coordinates.empty() ? "" : coordinates + ", ") + "host " + host_name() +
                          ", process " + std::to_string(getpid()));
  } catch (const std::exception&) {  // whoever needs the store next reports that it is gone
  }
}

void FailureDomain::set_place(std::function<std::string()> place) {
  const std::lock_guard lock(mutex_);
  place_ = std::move(place);
}

void FailureDomain::set_check(std::function<std::string(c10d::Store&)> check) {
  const std::lock_guard lock(mutex_);
  check_ = std::move(check);
}

void FailureDomain::set_observer(std::shared_ptr<StepObserver> observer) {
  const std::lock_guard lock(mutex_);
  observer_ = std::move(observer);
}

void FailureDomain::set_lifeline(std::shared_ptr<Lifeline> lifeline) {
  const std::lock_guard lock(mutex_);
  lifeline_ = std::move(lifeline);
}

std::shared_ptr<Lifeline> FailureDomain::lifeline() const {
  const std::lock_guard lock(mutex_);
  return lifeline_;
}

std::shared_ptr<StepObserver> FailureDomain::observer() const {
  const std::lock_guard lock(mutex_);
  return observer_;
}

bool FailureDomain::hung() const {
  const std::lock_guard lock(mutex_);
  return hung_;
}

std::string FailureDomain::cause() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

int FailureDomain::generation() const {
  const std::lock_guard lock(mutex_);
  return generation_;
}

void FailureDomain::throw_if_failed() const {
  if (failed()) throw std::runtime_error(cause());
}

void FailureDomain::throw_if_published() {
  const int generation = this->generation();
  try {
    const std::string failure = key("failure");
    if (!failed() && watch_store_->check({failure}))
      learn(watch_store_->get_to_str(failure), generation);
  } catch (const std::exception&) {  // without the store nobody knows
  }
  throw_if_failed();
}

// A key of the current generation.
std::string FailureDomain::key(const std::string& name) const { return key(name, generation()); }

std::string FailureDomain::key(const std::string& name, int generation) {
  return "domain/" + std::to_string(generation) + "/" + name;
}

std::string FailureDomain::fail(const std::string& message, Kind kind) {
  return fail(message, kind, generation());
}

std::string FailureDomain::fail(const std::string& message, Kind kind, int generation) {
  const std::function<std::string()> place = [this] {
    const std::lock_guard lock(mutex_);
    return place_;
  }();
  const std::string where = place ? place() : "";
  return publish(
      "rank " + std::to_string(rank_) + (where.empty() ? "" : ", " + where) + ": " + message, kind,
      generation);
}

void FailureDomain::connect(const std::function<void()>& part) {
  try {
    part();
  } catch (const std::exception& error) {
    const std::string own = fail(error.what());
    if (cause() != own) throw_if_failed();
    throw;
  }
}

// Fails this rank with its own text, and returns it. What was found in an earlier generation no
// longer matters.
std::string FailureDomain::publish(const std::string& own, Kind kind, int generation) {
  if (failed()) {
    abort_groups(generation);
    return own;
  }
  const std::string marked = kind == Kind::kHang ? kHangMark + own : own;
  std::string first;
  try {
    first = watch_store_->compareSet(key("failure", generation), "", marked);
  } catch (const std::exception&) {
    if (!hosts_store_) {
      lose_store(generation);
      return own;
    }
    first = marked;
  }
  try {
    watch_store_->set(key("news", generation), "1");
  } catch (const std::exception&) {  // the store is gone: whoever needs it next notices
  }
  watcher_->wake();  // other ranks of this process need not wait until this one has aborted
  learn(first, generation);
  return own;
}

// Ends what this process waits for in the store, too.
void FailureDomain::lose_store(int generation) {
  std::string owner = "rank 0", host;
  for (const StorePtr& store : {store_, watch_store_}) {
    auto* connection = dynamic_cast<BoundedStore*>(store.get());
    if (!connection) continue;
    connection->close();
    owner = connection->owner();
    host = ": host " + connection->host();
  }
  learn(owner + ", which hosts the store, has ended, or its host is unreachable" + host,
        generation);
}

// Takes over the first cause and ends what this process waits for.
void FailureDomain::learn(const std::string& cause, int generation) {
  {
    const std::lock_guard lock(mutex_);
    if (generation != generation_ || failed_) return;
    hung_ = cause.starts_with(kHangMark);
    cause_ = cause.substr(hung_ ? 1 : 0);
    failed_.store(true, std::memory_order_release);
  }
  answer();
  if (const auto observer = this->observer(); observer && hung()) observer->dump();
  release();
  abort_groups(generation);
}

// Unless reset() has connected the groups again in the meantime.
void FailureDomain::abort_groups(int generation) {
  const std::lock_guard abort(abort_mutex_);
  if (generation == this->generation()) abort_();
}

void FailureDomain::expect_by(std::function<std::string()> unfinished,
                              std::chrono::milliseconds limit) {
  if (size_ == 1) return;  // nobody watches
  const std::lock_guard lock(mutex_);
  expected_.push_back({std::move(unfinished), limit, Clock::now() + limit});
}

void FailureDomain::check_expected(int generation) {
  for (;;) {
    const std::optional<Expected> oldest = [this] {
      const std::lock_guard lock(mutex_);
      return expected_.empty() ? std::nullopt : std::optional(expected_.front());
    }();
    if (!oldest) return;
    const std::string late = oldest->unfinished();
    if (!late.empty()) {
      if (Clock::now() >= oldest->deadline)
        publish("rank " + std::to_string(rank_) + ": " + late, Kind::kHang, generation);
      return;
    }
    const std::lock_guard lock(mutex_);
    if (generation != generation_) return;
    expected_.pop_front();
    if (!expected_.empty()) expected_.front().deadline = Clock::now() + expected_.front().limit;
  }
}

void FailureDomain::check_progress(int generation) {
  const auto observer = this->observer();
  const std::string stalled = observer ? observer->stalled() : "";
  if (!stalled.empty()) fail(stalled, Kind::kHang, generation);
}

void FailureDomain::check_collectives(int generation) {
  const auto check = [this] {
    const std::lock_guard lock(mutex_);
    return check_;
  }();
  try {
    const std::string difference = check ? check(*watch_store_) : "";
    if (!difference.empty()) fail(difference, Kind::kError, generation);
  } catch (const std::exception&) {  // tick() reports that the store is gone
  }
}

FailureDomain::Waiting::Waiting(std::shared_ptr<FailureDomain> domain)
    : domain_(std::move(domain)) {
  if (!domain_) return;
  const std::lock_guard lock(domain_->mutex_);
  ++domain_->waiting_;
}

FailureDomain::Waiting::~Waiting() {
  if (!domain_) return;
  const std::lock_guard lock(domain_->mutex_);
  --domain_->waiting_;
}

// Whether this rank is in a step, or waits: then an end of another process is a failure. Otherwise
// it may be how a program ends.
bool FailureDomain::waits_for_others() const {
  const std::lock_guard lock(mutex_);
  return place_ || waiting_ > 0 || !awaited_.empty();
}

void FailureDomain::check_lifeline(int generation) {
  const auto lifeline = this->lifeline();
  const std::vector<int> broken = lifeline ? lifeline->broken() : std::vector<int>();
  if (broken.empty() || !waits_for_others()) return;
  publish("rank " + std::to_string(broken.front()) + ": its connection to rank 0 has closed",
          Kind::kError, generation);
}

std::optional<std::string> FailureDomain::tick() {
  const int generation = this->generation();
  if (failed()) return report_hang();
  hung_at_.reset();
  hang_.clear();
  stuck_ = false;
  check_expected(generation);
  check_progress(generation);
  check_collectives(generation);
  check_lifeline(generation);
  try {
    if (!watch_store_->check({key("news", generation)})) return std::nullopt;
    const std::string failure = key("failure", generation);
    if (watch_store_->check({failure}))
      learn(watch_store_->get_to_str(failure), generation);
    else if (!host_left_)
      host_left_ = watch_store_->check({"domain/host_left"});
  } catch (const std::exception&) {
    const bool in_step = [&] {
      const std::lock_guard lock(mutex_);
      return place_ != nullptr;
    }();
    if (in_step && !host_left_) lose_store(generation);
  }
  return std::nullopt;
}

std::string FailureDomain::wait_for(const std::string& key, std::chrono::milliseconds timeout,
                                    const std::string& late, c10d::Store* connection) {
  c10d::Store& store = connection ? *connection : *store_;
  {
    const std::lock_guard lock(mutex_);
    if (failed_) throw std::runtime_error(cause_);
    awaited_.insert(key);
  }
  const auto end_wait = [&] {
    const std::lock_guard lock(mutex_);
    awaited_.erase(awaited_.find(key));
  };
  const Clock::time_point deadline = Clock::now() + timeout;
  std::string value;
  try {
    store.wait({key}, timeout);
    value = store.get_to_str(key);
  } catch (const std::exception&) {
    end_wait();
    throw_if_failed();
    if (Clock::now() < deadline) throw;
    throw std::runtime_error(late);
  }
  end_wait();
  if (value != kReleased) return value;
  // Another rank's watcher was faster than this one's.
  poll(timeout, kPatience, [&] { return failed(); });
  throw_if_failed();
  throw std::runtime_error(late);
}

// Ends all wait_for(), which block in the store.
void FailureDomain::release() {
  const std::multiset<std::string> awaited = [&] {
    const std::lock_guard lock(mutex_);
    return awaited_;
  }();
  try {
    for (const std::string& key : awaited) {
      watch_store_->compareSet(key, "", kReleased);
      watch_store_->set(key + "/", "");  // c10d::HashStore wakes who waits only in set()
    }
  } catch (const std::exception&) {  // without the store nothing blocks there
  }
}

// Rank 0 comes last, when it has the lifelines of all others: once anybody returns, a process that
// ends is noticed again.
int64_t FailureDomain::reset(int64_t value, std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  const int next = generation() + 1;
  const auto lifeline = this->lifeline();
  const auto of_rank = [&](int rank) { return key("reset/" + std::to_string(rank)); };
  const auto arrive = [&] { store_->set(of_rank(rank_), std::to_string(value)); };
  const auto is_here = [&](int rank) {
    return store_->check({of_rank(rank)}) &&
           (rank_ > 0 || rank == 0 || !lifeline || lifeline->has_connected(rank, next));
  };
  int64_t least = value;
  const auto await = [&](int rank) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (!poll(left, kPatience, [&] { return is_here(rank); })) {
      throw std::runtime_error("reset: rank " + std::to_string(rank) + " did not call it within " +
                               std::to_string(timeout.count()) + " ms");
    }
    least = std::min<int64_t>(least, std::stoll(store_->get_to_str(of_rank(rank))));
  };
  if (rank_ > 0 && lifeline) lifeline->connect(next, timeout);
  if (rank_ > 0) arrive();
  for (int rank = 1; rank < size_; ++rank) await(rank);
  if (rank_ == 0) arrive();
  await(0);
  const std::lock_guard abort(abort_mutex_);
  const std::lock_guard lock(mutex_);
  ++generation_;
  expected_.clear();
  cause_.clear();
  explained_.clear();
  hung_ = false;
  failed_.store(false, std::memory_order_release);
  return least;
}

}  // namespace pipewright::comms
