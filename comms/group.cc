#include "pipewright/comms/group.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <future>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/torch_gaps/forwarding_work.h"

namespace pipewright::comms {
namespace {

// A wait looks this often whether the world has failed; an aborted backend has as long to end.
constexpr std::chrono::seconds kBetweenLooks{1};

// Calls `function` on a thread of its own, which is left to itself if nobody waits for the result.
template <typename Function>
auto on_own_thread(Function function) {
  std::packaged_task<decltype(function())()> task(std::move(function));
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  return result;
}

// Aborts a backend on a thread of its own, which then drops it. Over NCCL that lasts until the
// whole device is idle, so until all other groups that wait for the failed rank have been aborted
// too (https://github.com/pytorch/pytorch/issues/173815).
std::future<void> abort_on_thread(const std::string& name, BackendPtr backend) {
  return on_own_thread([name, backend = std::move(backend)]() mutable {
    try {
      backend->abort();
    } catch (const std::exception& error) {
      TORCH_WARN("abort of group `", name, "`: ", error.what());
    }
    backend.reset();
  });
}

// Calls `end` on a thread of its own, which then drops the backend.
std::future<void> end_on_thread(BackendPtr backend, void (c10d::Backend::*end)()) {
  return on_own_thread([backend = std::move(backend), end]() mutable {
    if (end) (*backend.*end)();
    backend.reset();
  });
}

// Ends a backend that has been aborted. That joins its threads, of which one over Gloo may be stuck
// until its time limit (abortable_gloo.h): then it is left to itself.
void end_aborted(BackendPtr backend) {
  end_on_thread(std::move(backend), nullptr).wait_for(kBetweenLooks);
}

// Calls `end`, which waits for operations. If the world fails meanwhile they may never end, and no
// other thread knows the backend any more: then it is aborted, and this returns false.
bool ends_by(void (c10d::Backend::*end)(), const std::string& name, const BackendPtr& backend,
             const std::shared_ptr<FailureDomain>& failures) {
  std::future<void> ends = end_on_thread(backend, end);
  std::optional<FailureDomain::Waiting> waiting;
  while (ends.wait_for(kBetweenLooks) == std::future_status::timeout) {
    if (!waiting) waiting.emplace(failures);
    if (!failures || !failures->failed()) continue;
    abort_on_thread(name, backend).wait_for(kBetweenLooks);
    ends.wait_for(kBetweenLooks);
    return false;
  }
  ends.get();
  return true;
}

// Lets pending operations finish. ProcessGroupNCCL has its communicator locked while shutdown()
// waits for them, so that abort() would wait too (PyTorch 2.11): they have ended before.
void end_cleanly(const std::string& name, const BackendPtr& backend,
                 const std::shared_ptr<FailureDomain>& failures) {
  const bool is_nccl = backend->getBackendName() == "nccl";
  if (is_nccl && !ends_by(&c10d::Backend::waitForPendingWorks, name, backend, failures)) return;
  ends_by(&c10d::Backend::shutdown, name, backend, failures);
}

}  // namespace

Group::Group(std::string name, int rank, std::vector<int> members, MakeBackend make_backend,
             std::chrono::milliseconds timeout, std::weak_ptr<FailureDomain> failures)
    : ForwardingBackend(rank, static_cast<int>(members.size())),
      name_(std::move(name)),
      members_(std::move(members)),
      make_backend_(std::move(make_backend)),
      timeout_(timeout),
      failures_(std::move(failures)),
      log_(std::make_shared<CollectiveLog>(name_, rank, members_)) {
  connect_again(0);
}

Group::~Group() { end(); }

void Group::release_resources() { end(); }

void Group::end() {
  const auto failures = failures_.lock();
  BackendPtr backend = std::exchange(backend_, nullptr);
  if (!backend) return;
  if (aborted_ || (failures && failures->failed()))
    end_aborted(std::move(backend));
  else
    end_cleanly(name_, backend, failures);
}

void Group::connect_again(int generation) {
  BackendPtr old;
  {
    const std::lock_guard lock(mutex_);
    old = std::exchange(backend_, nullptr);
  }
  if (old) end_aborted(std::move(old));
  const std::string name = generation == 0 ? name_ : name_ + "@" + std::to_string(generation);
  const BackendPtr made = make(name);
  const std::lock_guard lock(mutex_);
  backend_ = made;
  aborted_ = false;
  generation_ = generation;
  log_->start(name);
  pg_uid_ = name;
  pg_desc_ = !made || made->getGroupDesc().empty() ? name : made->getGroupDesc();
  if (made) bound_device_id_ = made->getBoundDeviceId();
}

// On a thread of its own: if another member ends before it is connected, nothing ends the wait for
// it, neither in Gloo nor in NCCL. Then the thread is left to itself.
BackendPtr Group::make(const std::string& name) const {
  const auto failures = failures_.lock();
  const FailureDomain::Waiting waiting(failures);
  std::future<BackendPtr> made = on_own_thread(
      [make = make_backend_, name, rank = rank_, size = size_] { return make(name, rank, size); });
  while (made.wait_for(kBetweenLooks) == std::future_status::timeout)
    if (failures) failures->throw_if_failed();
  return made.get();
}

int Group::generation() const {
  const std::lock_guard lock(mutex_);
  return generation_;
}

void Group::fail(const std::string& message) {
  const auto failures = failures_.lock();
  if (failures) failures->fail(message);
  abort();
}

void Group::abort() { begin_abort().wait_for(kBetweenLooks); }

std::future<void> Group::begin_abort() {
  const std::lock_guard lock(mutex_);
  log_->stop();
  if (!std::exchange(aborted_, true) && backend_) return abort_on_thread(name_, backend_);
  std::promise<void> nothing_to_do;
  nothing_to_do.set_value();
  return nothing_to_do.get_future();
}

BackendPtr Group::inner() const {
  const std::lock_guard lock(mutex_);
  if (!backend_) throw std::runtime_error("group `" + name_ + "` is not connected");
  return backend_;
}

class Group::Issued final : public ForwardingWork {
 public:
  Issued(WorkPtr work, const Group& group)
      : ForwardingWork(std::move(work)),
        log_(group.log_),
        failures_(group.failures_),
        timeout_(group.timeout_) {}

  bool wait(std::chrono::milliseconds timeout) override {
    const auto failures = failures_.lock();
    const FailureDomain::Waiting waiting(failures);
    log_->begin_wait(this);
    bool done = false;
    try {
      done = work_->wait(timeout);
    } catch (const std::exception&) {
      if (failures) {
        // What a backend throws because its connections were closed is a consequence.
        failures->throw_if_published();
        if (const std::string late = log_->late(timeout_); !late.empty()) {
          failures->fail(late, FailureDomain::Kind::kHang);
          failures->throw_if_failed();
        }
      }
      throw;
    }
    log_->end_wait(this);
    return done;
  }

 private:
  const std::shared_ptr<CollectiveLog> log_;
  const std::weak_ptr<FailureDomain> failures_;
  const std::chrono::milliseconds timeout_;
};

Group::WorkPtr Group::issued(int64_t number, WorkPtr work) {
  if (!work) return work;
  auto issued = c10::make_intrusive<Issued>(std::move(work), *this);
  log_->set_work(number, issued.get());
  return issued;
}

void Group::shutdown() { inner()->shutdown(); }

void Groups::add(const c10::intrusive_ptr<Group>& group) {
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const Known& known) { return known.group.expired(); });
  groups_.push_back({c10::weak_intrusive_ptr<Group>(group), group->log()});
}

void Groups::abort() {
  std::vector<std::future<void>> aborts;
  for (const auto& group : alive()) aborts.push_back(group->begin_abort());
  const auto deadline = std::chrono::steady_clock::now() + kBetweenLooks;
  for (const auto& abort : aborts) abort.wait_until(deadline);
}

void Groups::connect_again(int generation) {
  for (const auto& group : alive()) group->connect_again(generation);
}

std::vector<GroupState> Groups::states() {
  std::vector<GroupState> states;
  for (const auto& log : logs()) states.push_back(log->state());
  return states;
}

std::string Groups::difference(c10d::Store& store) {
  for (const auto& log : logs()) {
    std::string difference = log->difference(store);
    if (!difference.empty()) return difference;
  }
  return "";
}

std::vector<c10::intrusive_ptr<Group>> Groups::alive() {
  const std::lock_guard lock(mutex_);
  std::vector<c10::intrusive_ptr<Group>> alive;
  for (const Known& known : groups_) {
    if (auto group = known.group.lock()) alive.push_back(std::move(group));
  }
  return alive;
}

// Without their groups: the last reference to a group shuts it down, on the thread that drops it.
std::vector<std::shared_ptr<CollectiveLog>> Groups::logs() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<CollectiveLog>> logs;
  for (const Known& known : groups_) {
    if (known.group.expired()) continue;
    if (auto log = known.log.lock()) logs.push_back(std::move(log));
  }
  return logs;
}

std::vector<int> members_of(const c10d::Backend& group) {
  if (const auto* handle = dynamic_cast<const Group*>(&group)) return handle->members();
  std::vector<int> ranks(static_cast<size_t>(group.getSize()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void fail(c10d::Backend& group, const std::string& message) {
  if (auto* handle = dynamic_cast<Group*>(&group))
    handle->fail(message);
  else
    group.abort();
}

int generation_of(const c10d::Backend& group) {
  const auto* handle = dynamic_cast<const Group*>(&group);
  return handle ? handle->generation() : 0;
}

}  // namespace pipewright::comms
