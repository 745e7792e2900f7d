#include "pipewright/comms/group.h"

#include <stdexcept>
#include <utility>

namespace pipewright::comms {

Group::Group(std::string name, int rank, std::vector<int> members, MakeBackend make_backend,
             std::weak_ptr<FailureDomain> failures)
    : c10d::Backend(rank, static_cast<int>(members.size())),
      name_(std::move(name)),
      members_(std::move(members)),
      make_backend_(std::move(make_backend)),
      failures_(std::move(failures)) {
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
  pg_uid_ = name;
  pg_desc_ = !made || made->getGroupDesc().empty() ? name : made->getGroupDesc();
  if (made) bound_device_id_ = made->getBoundDeviceId();
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
  }
  if (aborted) aborted->abort();
}

BackendPtr Group::backend() const {
  const std::lock_guard lock(mutex_);
  if (!backend_) throw std::runtime_error("group `" + name_ + "` is not connected");
  return backend_;
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

std::vector<c10::intrusive_ptr<Group>> Groups::alive() {
  const std::lock_guard lock(mutex_);
  std::vector<c10::intrusive_ptr<Group>> alive;
  for (const auto& known : groups_) {
    if (auto group = known.lock()) alive.push_back(std::move(group));
  }
  return alive;
}

void fail(c10d::Backend& group, const std::string& message) {
  if (auto* handle = dynamic_cast<Group*>(&group))
    handle->fail(message);
  else
    group.abort();
}

}  // namespace pipewright::comms
