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
// arrived, so a late writer of an old generation cannot fail the new one.
//
// Complexity: one or two store requests per rank and tick; on a failure a few per rank.
#include "pipewright/comms/failure_domain.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "pipewright/comms/bounded_store.h"
#include "pipewright/comms/dump_signal.h"
#include "pipewright/comms/error_file.h"
#include "pipewright/comms/poll.h"

namespace pipewright::comms {
namespace {

constexpr std::chrono::milliseconds kTick{100};
constexpr std::chrono::milliseconds kRollCall{1500};
constexpr std::chrono::milliseconds kLeave{300};
constexpr std::chrono::milliseconds kStuck{1500};  // from the report of a hang
constexpr char kHangMark = '\x01';                 // starts the value of a failure that is a hang
constexpr int kPatience = 16;

using Clock = std::chrono::steady_clock;

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

}  // namespace

Watcher::~Watcher() {
  {
    const std::lock_guard lock(wake_mutex_);
    stop_ = true;
  }
  woken_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watcher::add(FailureDomain* domain) {
  const std::lock_guard lock(domains_mutex_);
  domains_.push_back(domain);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
}

void Watcher::remove(FailureDomain* domain) {
  const std::lock_guard lock(domains_mutex_);
  std::erase(domains_, domain);
}

void Watcher::wake() {
  {
    const std::lock_guard lock(wake_mutex_);
    wake_ = true;
  }
  woken_.notify_all();
}

void Watcher::run() {
  std::unique_lock lock(wake_mutex_);
  while (!stop_) {
    woken_.wait_for(lock, kTick, [this] { return wake_ || stop_; });
    wake_ = false;
    lock.unlock();
    tick();
    lock.lock();
  }
}

void Watcher::tick() {
  const std::lock_guard lock(domains_mutex_);
  if (const int requested = dumps_requested(); requested != dumps_requested_) {
    dumps_requested_ = requested;
    for (FailureDomain* domain : domains_) domain->dump();
  }
  for (FailureDomain* domain : domains_) {
    const std::optional<std::string> hang = domain->tick();
    if (!hang || *hang == printed_) continue;  // another rank of this process had the same
    printed_ = *hang;
    std::fprintf(stderr, "hang: %s\n", hang->c_str());
    write_error_file(*hang);
  }
}

FailureDomain::FailureDomain(int rank, int size, StorePtr store, std::shared_ptr<Watcher> watcher,
                             bool hosts_store, std::function<void()> abort,
                             std::unique_ptr<Lifeline> lifeline)
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

FailureDomain::~FailureDomain() {
  if (size_ == 1) return;
  watcher_->remove(this);
  try {
    const int64_t left = watch_store_->add("domain/left", 1);
    if (!hosts_store_ || left == size_) return;
    watch_store_->set("domain/host_left", "1");
    const Clock::time_point deadline = Clock::now() + kLeave;
    while (Clock::now() < deadline && watch_store_->add("domain/left", 0) < size_)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
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

void FailureDomain::set_observer(std::shared_ptr<StepObserver> observer) {
  const std::lock_guard lock(mutex_);
  observer_ = std::move(observer);
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

// A key of the current generation.
std::string FailureDomain::key(const std::string& name) const {
  return "domain/" + std::to_string(generation()) + "/" + name;
}

std::string FailureDomain::fail(const std::string& message, Kind kind) {
  const std::function<std::string()> place = [this] {
    const std::lock_guard lock(mutex_);
    return place_;
  }();
  const std::string where = place ? place() : "";
  return publish(
      "rank " + std::to_string(rank_) + (where.empty() ? "" : ", " + where) + ": " + message, kind);
}

// Fails this rank with its own text, and returns it.
std::string FailureDomain::publish(const std::string& own, Kind kind) {
  const int generation = this->generation();
  if (failed()) {
    abort_groups(generation);
    return own;
  }
  const std::string marked = kind == Kind::kHang ? kHangMark + own : own;
  std::string first;
  try {
    first = watch_store_->compareSet(key("failure"), "", marked);
  } catch (const std::exception&) {
    if (!hosts_store_) {
      lose_store(generation);
      return own;
    }
    first = marked;
  }
  learn(first, generation);
  watcher_->wake();
  return own;
}

// Ends what this process waits for in the store, too.
void FailureDomain::lose_store(int generation) {
  std::string host;
  for (const StorePtr& store : {store_, watch_store_}) {
    auto* connection = dynamic_cast<BoundedStore*>(store.get());
    if (!connection) continue;
    connection->close();
    host = ": host " + connection->host();
  }
  learn("rank 0, which hosts the store, has ended, or its host is unreachable" + host, generation);
}

std::string FailureDomain::explain() {
  const std::string first = cause();
  if (size_ == 1) return first;
  try {
    std::vector<std::string> all;
    for (int rank = 0; rank < size_; ++rank) all.push_back(key("answer/" + std::to_string(rank)));
    const Clock::time_point deadline = Clock::now() + kRollCall;
    while (!watch_store_->check(all) && Clock::now() < deadline &&
           !watch_store_->check({key("absent")}))
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    // The first rank to finish its roll call speaks for all.
    if (!watch_store_->check({key("absent")}))
      watch_store_->compareSet(key("absent"), "", absent_and_verdict(first) + "\n");
    std::string agreed = watch_store_->get_to_str(key("absent"));
    agreed.pop_back();
    return first + agreed;
  } catch (const std::exception&) {
    return first;  // without the store nobody answers
  }
}

// What follows the first cause: where its rank is, who does not answer, and who causes a hang.
std::string FailureDomain::absent_and_verdict(const std::string& first) {
  const auto identity = [&](int rank) {
    const std::string key = "domain/who/" + std::to_string(rank);
    return watch_store_->check({key}) ? watch_store_->get_to_str(key) : std::string();
  };
  const auto who = [&](int rank) {
    const std::string own = identity(rank);
    return "\n  rank " + std::to_string(rank) + (own.empty() ? "" : ": " + own);
  };
  std::string absent;
  std::vector<std::optional<std::string>> reports;
  for (int rank = 0; rank < size_; ++rank) {
    const std::string answer = key("answer/" + std::to_string(rank));
    if (watch_store_->check({answer})) {
      reports.emplace_back(watch_store_->get_to_str(answer));
      continue;
    }
    reports.emplace_back(std::nullopt);
    absent += who(rank) + ": has ended, or its host is unreachable";
  }
  const std::string culprit = first.substr(5, first.find_first_not_of("0123456789", 5) - 5);
  const bool named = first.starts_with("rank ") && !culprit.empty();
  std::string text = named && reports[std::stoul(culprit)] ? who(std::stoi(culprit)) : "";
  text += absent;
  const auto observer = this->observer();
  if (observer && hung()) text += observer->verdict(reports, identity);
  return text;
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

void FailureDomain::answer() {
  const auto observer = this->observer();
  try {
    watch_store_->set(key("answer/" + std::to_string(rank_)),
                      observer && hung() ? observer->report() : "-");
  } catch (const std::exception&) {
  }
}

void FailureDomain::expect_by(std::function<std::string()> unfinished,
                              std::chrono::milliseconds limit) {
  const std::lock_guard lock(mutex_);
  std::optional<Expected>& place = oldest_expected_ ? newest_expected_ : oldest_expected_;
  place = Expected{std::move(unfinished), Clock::now() + limit};
}

// The oldest is kept until its time is over; the newest, which replaces those in between, comes
// after it.
void FailureDomain::check_expected() {
  std::optional<Expected> due;
  {
    const std::lock_guard lock(mutex_);
    if (!oldest_expected_ || Clock::now() < oldest_expected_->deadline) return;
    due = std::exchange(oldest_expected_, std::exchange(newest_expected_, std::nullopt));
  }
  const std::string late = due->unfinished();
  if (!late.empty()) publish("rank " + std::to_string(rank_) + ": " + late);
}

void FailureDomain::check_progress() {
  const auto observer = this->observer();
  const std::string stalled = observer ? observer->stalled() : "";
  if (!stalled.empty()) fail(stalled, Kind::kHang);
}

// Whether this rank is in a step, or waits in the store: then an end of another process is a
// failure. Otherwise it may be how a program ends.
bool FailureDomain::waits_for_others() const {
  const std::lock_guard lock(mutex_);
  return place_ || !awaited_.empty();
}

void FailureDomain::check_lifeline() {
  if (!lifeline_) return;
  const std::vector<int> broken = lifeline_->broken();
  const std::optional<int> first = [&]() -> std::optional<int> {
    const std::lock_guard lock(mutex_);
    broken_.insert(broken_.end(), broken.begin(), broken.end());
    return broken_.empty() ? std::nullopt : std::optional(broken_.front());
  }();
  if (first && waits_for_others())
    publish("rank " + std::to_string(*first) + ": its connection to rank 0 has closed");
}

void FailureDomain::dump() {
  if (const auto observer = this->observer()) observer->dump();
}

// One thread serves all ranks of this process, so it must not wait for the answer of any.
std::optional<std::string> FailureDomain::report_hang() {
  const auto observer = this->observer();
  if (!observer || !hung()) return std::nullopt;
  const Clock::time_point now = Clock::now();
  if (!hung_at_) hung_at_ = now;
  if (hang_.empty()) {
    bool is_complete = now > *hung_at_ + kRollCall;
    for (int rank = 0; !is_complete && rank < size_; ++rank) {
      try {
        if (!watch_store_->check({key("answer/" + std::to_string(rank))})) return std::nullopt;
      } catch (const std::exception&) {
        is_complete = true;
      }
    }
    hung_at_ = now;
    hang_ = explain();
    return hang_;
  }
  const bool in_step = [&] {
    const std::lock_guard lock(mutex_);
    return place_ != nullptr;
  }();
  if (!stuck_ && in_step && now > *hung_at_ + kStuck) {
    stuck_ = true;
    observer->stuck(hang_);
  }
  return std::nullopt;
}

std::optional<std::string> FailureDomain::tick() {
  if (failed()) return report_hang();
  hung_at_.reset();
  hang_.clear();
  stuck_ = false;
  check_expected();
  check_progress();
  check_lifeline();
  const int generation = this->generation();
  try {
    const std::string failure = key("failure");
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

int64_t FailureDomain::reset(int64_t value, std::chrono::milliseconds timeout) {
  const std::string prefix = key("reset/");
  const auto of_rank = [&](int rank) { return prefix + std::to_string(rank); };
  store_->set(of_rank(rank_), std::to_string(value));
  const Clock::time_point deadline = Clock::now() + timeout;
  int64_t least = value;
  for (int rank = 0; rank < size_; ++rank) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (!poll(left, kPatience, [&] { return store_->check({of_rank(rank)}); })) {
      throw std::runtime_error("reset: rank " + std::to_string(rank) + " did not call it within " +
                               std::to_string(timeout.count()) + " ms");
    }
    least = std::min<int64_t>(least, std::stoll(store_->get_to_str(of_rank(rank))));
  }
  const std::lock_guard abort(abort_mutex_);
  const std::lock_guard lock(mutex_);
  ++generation_;
  oldest_expected_.reset();
  newest_expected_.reset();
  broken_.clear();
  cause_.clear();
  hung_ = false;
  failed_.store(false, std::memory_order_release);
  return least;
}

}  // namespace pipewright::comms
