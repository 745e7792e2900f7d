#include "pipewright/comms/group.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace pipewright::comms {

Group::Group(std::string name, int rank, std::vector<int> members, MakeBackend make_backend,
             std::weak_ptr<FailureDomain> failures, std::weak_ptr<Groups> groups)
    : c10d::Backend(rank, static_cast<int>(members.size())),
      name_(std::move(name)),
      members_(std::move(members)),
      make_backend_(std::move(make_backend)),
      failures_(std::move(failures)),
      groups_(std::move(groups)),
      log_(std::make_shared<CollectiveLog>(name_, rank, members_)) {
  connect_again(0);
}

Group::~Group() { end(); }

void Group::release_resources() { end(); }

void Group::end() {
  const auto failures = failures_.lock();
  const BackendPtr backend = std::exchange(backend_, nullptr);
  if (backend && !aborted_ && !(failures && failures->failed())) backend->shutdown();
}

void Group::connect_again(int generation) {
  BackendPtr old;
  {
    const std::lock_guard lock(mutex_);
    old = std::exchange(backend_, nullptr);
  }
  old.reset();  // joins the backend's threads, whose operations have ended
  const std::string name = generation == 0 ? name_ : name_ + "@" + std::to_string(generation);
  const BackendPtr made = make_backend_(name, rank_, size_);
  const std::lock_guard lock(mutex_);
  backend_ = made;
  aborted_ = false;
  generation_ = generation;
  log_->start(name);
  pg_uid_ = name;
  pg_desc_ = !made || made->getGroupDesc().empty() ? name : made->getGroupDesc();
  if (made) bound_device_id_ = made->getBoundDeviceId();
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

void Group::abort() {
  BackendPtr aborted;
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(aborted_, true)) aborted = backend_;
    log_->stop();
  }
  if (aborted) aborted->abort();
}

BackendPtr Group::backend() const {
  const std::lock_guard lock(mutex_);
  if (!backend_) throw std::runtime_error("group `" + name_ + "` is not connected");
  return backend_;
}

Group::WorkPtr Group::issued(int64_t number, WorkPtr work) {
  log_->set_work(number, work.get());
  return work;
}

void Group::wait(c10d::Work& work) {
  log_->begin_wait(&work);
  try {
    const Groups::Wait wait(groups_.lock(), log_);
    work.wait();
  } catch (const std::exception&) {
    // What a backend throws because its connections were closed is a consequence.
    if (const auto failures = failures_.lock()) failures->throw_if_published();
    throw;
  }
  log_->end_wait(&work);
}

void Group::shutdown() { backend()->shutdown(); }

void Groups::add(const c10::intrusive_ptr<Group>& group) {
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const auto& known) { return known.expired(); });
  groups_.emplace_back(group);
}

void Groups::abort() {
  for (const auto& group : alive()) group->abort();
}

void Groups::connect_again(int generation) {
  for (const auto& group : alive()) group->connect_again(generation);
}

std::vector<GroupState> Groups::states() {
  std::vector<GroupState> states;
  for (const auto& group : alive()) states.push_back(group->state());
  return states;
}

Groups::Wait::Wait(std::shared_ptr<Groups> groups, std::shared_ptr<CollectiveLog> group)
    : groups_(std::move(groups)), group_(std::move(group)) {
  if (!groups_) return;
  const std::lock_guard lock(groups_->waiting_mutex_);
  groups_->waiting_.push_back(group_);
}

Groups::Wait::~Wait() {
  if (!groups_) return;
  const std::lock_guard lock(groups_->waiting_mutex_);
  groups_->waiting_.erase(std::ranges::find(groups_->waiting_, group_));
}

std::string Groups::difference(c10d::Store& store) {
  const std::vector<std::shared_ptr<CollectiveLog>> waiting = [this] {
    const std::lock_guard lock(waiting_mutex_);
    return waiting_;
  }();
  for (const auto& group : waiting) {
    std::string difference = group->difference(store);
    if (!difference.empty()) return difference;
  }
  return "";
}

std::vector<c10::intrusive_ptr<Group>> Groups::alive() {
  const std::lock_guard lock(mutex_);
  std::vector<c10::intrusive_ptr<Group>> alive;
  for (const auto& known : groups_) {
    if (auto group = known.lock()) alive.push_back(std::move(group));
  }
  return alive;
}

void wait(c10d::Backend& group, c10d::Work& work) {
  if (auto* handle = dynamic_cast<Group*>(&group))
    handle->wait(work);
  else
    work.wait();
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
