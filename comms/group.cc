#include "pipewright/comms/group.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "pipewright/comms/steady_seconds.h"

namespace pipewright::comms {
namespace {

constexpr size_t kLast = 256;  // collectives that a group remembers
constexpr double kSlow = 1;    // seconds after which a collective is compared between members

// What members must have alike: not the sizes, of which only the product counts.
std::string signature(const Collective& collective) {
  int64_t numel = 1;
  for (const int64_t size : collective.input) numel *= size;
  const bool has_own_size = collective.op.starts_with("alltoall");
  return collective.op + " " + collective.dtype + (has_own_size ? "" : " " + std::to_string(numel));
}

}  // namespace

std::string Collective::describe() const {
  std::ostringstream text;
  text << op;
  if (!dtype.empty()) text << " of " << dtype << " " << at::IntArrayRef(input);
  return text.str();
}

Group::Group(std::string name, int rank, std::vector<int> members, MakeBackend make_backend,
             std::weak_ptr<FailureDomain> failures, std::weak_ptr<Groups> groups)
    : c10d::Backend(rank, static_cast<int>(members.size())),
      name_(std::move(name)),
      members_(std::move(members)),
      make_backend_(std::move(make_backend)),
      failures_(std::move(failures)),
      groups_(std::move(groups)) {
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
  num_issued_ = waits_for_ = compared_ = 0;
  first_.clear();
  last_.clear();
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
  }
  if (aborted) aborted->abort();
}

BackendPtr Group::backend() const {
  const std::lock_guard lock(mutex_);
  if (!backend_) throw std::runtime_error("group `" + name_ + "` is not connected");
  return backend_;
}

int64_t Group::issue(const char* op, const Tensor& input, const Tensor& output) {
  const auto sizes = [](const Tensor& tensor) {
    return tensor.defined() ? tensor.sizes().vec() : std::vector<int64_t>();
  };
  const std::lock_guard lock(mutex_);
  if (last_.size() == kLast) last_.pop_front();
  last_.push_back({op, ++num_issued_, sizes(input), sizes(output),
                   input.defined() ? c10::toString(input.scalar_type()) : "", steady_seconds(),
                   false, nullptr});
  return num_issued_;
}

Group::WorkPtr Group::issued(int64_t number, WorkPtr work) {
  const std::lock_guard lock(mutex_);
  for (Collective& one : last_) {
    if (one.work == work.get()) one.work = nullptr;  // nobody waited for it, and it is gone
    if (one.number == number) one.work = work.get();
  }
  return work;
}

void Group::wait(c10d::Work& work) {
  const auto mark = [&](bool done) {
    const std::lock_guard lock(mutex_);
    waits_for_ = 0;
    for (Collective& one : last_) {
      if (one.work != &work) continue;
      if (!done) waits_for_ = one.number;
      one.is_done = done;
      if (done) one.work = nullptr;
    }
  };
  mark(false);
  try {
    const Groups::Wait wait(groups_.lock(), this);
    work.wait();
  } catch (const std::exception&) {
    // What a backend throws because its connections were closed is a consequence.
    if (const auto failures = failures_.lock()) failures->throw_if_published();
    throw;
  }
  mark(true);
}

std::string Group::difference(c10d::Store& store) {
  Collective mine;
  std::string prefix, written_before;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(
        last_, [&](const Collective& one) { return one.number == waits_for_ && waits_for_ > 0; });
    if (found == last_.end() || found->number == compared_ || aborted_ ||
        steady_seconds() < found->seconds + kSlow)
      return "";
    mine = *found;
    compared_ = mine.number;
    prefix = "collective/" + pg_uid_ + "/";
    written_before = std::exchange(first_, "");
  }
  if (!written_before.empty()) store.deleteKey(written_before);
  const std::string key = prefix + std::to_string(mine.number);
  const std::string own = signature(mine) + "\n" + mine.describe() + " as on rank " +
                          std::to_string(members_[static_cast<size_t>(rank_)]);
  const std::string theirs = store.compareSet(key, "", own);
  if (theirs == own) {
    const std::lock_guard lock(mutex_);
    first_ = key;
    return "";
  }
  const size_t end = theirs.find('\n');
  if (theirs.substr(0, end) == signature(mine)) return "";
  return "collective " + std::to_string(mine.number) + " of group `" + name_ + "`: expected " +
         theirs.substr(end + 1) + ", got " + mine.describe();
}

GroupState Group::state() const {
  const std::lock_guard lock(mutex_);
  return {name_, members_, num_issued_, waits_for_, {last_.begin(), last_.end()}};
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

Groups::Wait::Wait(std::shared_ptr<Groups> groups, Group* group)
    : groups_(std::move(groups)), group_(group) {
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
  const std::lock_guard lock(waiting_mutex_);
  for (Group* group : waiting_) {
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
