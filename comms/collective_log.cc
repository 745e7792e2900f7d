// Comparison: the first member that has waited for a collective for a second writes what it has
// called to the store, by compareSet; every later one learns that, and compares. A member removes
// what it wrote when it compares a later collective, which it calls only after this one has ended.
#include "pipewright/comms/collective_log.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "pipewright/comms/steady_seconds.h"

namespace pipewright::comms {
namespace {

constexpr size_t kLast = 256;  // collectives that a log remembers
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

CollectiveLog::CollectiveLog(std::string name, int rank, std::vector<int> members)
    : name_(std::move(name)), rank_(rank), members_(std::move(members)) {}

void CollectiveLog::start(const std::string& connection) {
  const std::lock_guard lock(mutex_);
  connection_ = connection;
  is_stopped_ = false;
  num_issued_ = waits_for_ = compared_ = 0;
  first_.clear();
  last_.clear();
  on_device_.clear();
}

void CollectiveLog::stop() {
  const std::lock_guard lock(mutex_);
  is_stopped_ = true;
}

int64_t CollectiveLog::add(const char* op, const at::Tensor& input, const at::Tensor& output) {
  const auto sizes = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.sizes().vec() : std::vector<int64_t>();
  };
  const std::lock_guard lock(mutex_);
  if (last_.size() == kLast) last_.pop_front();
  last_.push_back({op, ++num_issued_, sizes(input), sizes(output),
                   input.defined() ? c10::toString(input.scalar_type()) : "", steady_seconds(),
                   false, nullptr});
  if (output.defined() && !output.is_cpu()) on_device_.called(num_issued_, output.device());
  return num_issued_;
}

void CollectiveLog::set_work(int64_t number, const void* work) {
  const std::lock_guard lock(mutex_);
  for (Collective& one : last_) {
    if (one.work == work) one.work = nullptr;  // nobody waited for it, and it is gone
    if (one.number == number) one.work = work;
  }
}

void CollectiveLog::begin_wait(const void* work) {
  const std::lock_guard lock(mutex_);
  waits_for_ = 0;
  for (Collective& one : last_) {
    if (one.work != work) continue;
    waits_for_ = one.number;
    one.is_done = false;
    on_device_.begin_wait(one.number);
  }
}

void CollectiveLog::end_wait(const void* work) {
  const std::lock_guard lock(mutex_);
  waits_for_ = 0;
  for (Collective& one : last_) {
    if (one.work != work) continue;
    one.is_done = true;
    one.work = nullptr;
    on_device_.end_wait(one.number);
  }
}

GroupState CollectiveLog::state() {
  const std::lock_guard lock(mutex_);
  const DeviceCollectives::State device = on_device_.state(steady_seconds());
  GroupState state{.name = name_,
                   .members = members_,
                   .issued = num_issued_,
                   .joined = device.joined.value_or(num_issued_),
                   .waits_for = waits_for_ > 0 ? waits_for_ : device.waits_for,
                   .stream = device.stream,
                   .last = {last_.begin(), last_.end()}};
  if (waits_for_ > 0) state.stream.reset();
  for (Collective& one : state.last) one.is_done &= !on_device_.is_pending(one.number);
  return state;
}

std::string CollectiveLog::late(std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(last_, waits_for_, &Collective::number);
  // Clocks of waits may be a little early.
  if (found == last_.end() || steady_seconds() - found->seconds < 0.99e-3 * timeout.count())
    return "";
  return found->describe() + ", collective " + std::to_string(found->number) + " of group `" +
         name_ + "`, did not end within " + std::to_string(timeout.count()) + " ms";
}

std::string CollectiveLog::difference(c10d::Store& store) {
  Collective mine;
  std::string connection, written_before;
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return "";
    const double until = steady_seconds() - kSlow;
    const int64_t number = waits_for_ > 0 ? waits_for_ : on_device_.state(until).waits_for;
    const auto found = std::ranges::find(last_, number, &Collective::number);
    if (found == last_.end() || number == compared_ || found->seconds > until) return "";
    mine = *found;
    compared_ = mine.number;
    connection = connection_;
    written_before = std::exchange(first_, "");
  }
  if (!written_before.empty()) store.deleteKey(written_before);
  const std::string key = "collective/" + connection + "/" + std::to_string(mine.number);
  const std::string own = signature(mine) + "\n" + mine.describe() + " as on rank " +
                          std::to_string(members_[static_cast<size_t>(rank_)]);
  const std::string theirs = store.compareSet(key, "", own);
  if (theirs == own) {
    const std::lock_guard lock(mutex_);
    if (connection == connection_) first_ = key;
    return "";
  }
  const size_t end = theirs.find('\n');
  if (theirs.substr(0, end) == signature(mine)) return "";
  return "collective " + std::to_string(mine.number) + " of group `" + name_ + "`: expected " +
         theirs.substr(end + 1) + ", got " + mine.describe();
}

}  // namespace pipewright::comms
