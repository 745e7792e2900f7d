// Calls are forgotten when their wait has ended, or if nobody has waited for them for long, when
// the device has joined them: so there are at most as many as the host is ahead of the device, and
// kMany.
#include "pipewright/comms/collective_log.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include "pipewright/comms/process/steady_seconds.h"

namespace pipewright::comms {

namespace {

constexpr int64_t kMany = 256;  // later calls after which nobody will wait for a collective

}  // namespace

void DeviceCollectives::called(int64_t number, c10::Device device, c10::Event joined) {
  while (!calls_.empty() && calls_.front().number + kMany <= number &&
         (calls_.front().reached ? has_passed(calls_.front()) : has_ended(calls_.front().joined))) {
    recycle(&calls_.front());
    calls_.pop_front();
  }
  calls_.push_back({number, device, std::move(joined), {}, {}, {}});
}

void DeviceCollectives::begin_wait(int64_t number, const c10::Stream& stream, c10::Event reached) {
  if (Call* call = find(number)) {
    call->stream = stream;
    call->reached = std::move(reached);
  }
}

void DeviceCollectives::end_wait(int64_t number, c10::Event passed) {
  if (Call* call = find(number)) call->passed = std::move(passed);
}

std::optional<c10::Device> DeviceCollectives::device_of(int64_t number) const {
  const Call* call = find(number);
  return call ? std::optional(call->device) : std::nullopt;
}

void DeviceCollectives::clear() {
  for (Call& call : calls_) recycle(&call);
  calls_.clear();
}

DeviceCollectives::State DeviceCollectives::state() {
  std::erase_if(calls_, [this](Call& call) {
    if (!has_passed(call)) return false;
    recycle(&call);
    return true;
  });
  State state;
  for (const Call& call : calls_) {
    if (!has_ended(call.joined)) {
      state.joined = call.number - 1;
      break;
    }
    if (call.reached && has_ended(*call.reached) && !has_passed(call))
      state.waits.push_back({call.number, *call.stream});
  }
  return state;
}

bool DeviceCollectives::is_pending(int64_t number) const {
  const Call* call = find(number);
  return call && !has_passed(*call);
}

const DeviceCollectives::Call* DeviceCollectives::find(int64_t number) const {
  const auto found = std::ranges::lower_bound(calls_, number, {}, &Call::number);
  return found == calls_.end() || found->number != number ? nullptr : &*found;
}

DeviceCollectives::Call* DeviceCollectives::find(int64_t number) {
  return const_cast<Call*>(std::as_const(*this).find(number));
}

bool DeviceCollectives::has_passed(const Call& call) {
  return call.passed && has_ended(*call.passed);
}

void DeviceCollectives::recycle(Call* call) {
  events_.give_back(std::move(call->joined));
  for (auto* event : {&call->reached, &call->passed}) {
    if (*event) events_.give_back(std::move(**event));
  }
}

// Comparison: the first member that has waited for a collective for a second writes what it has
// called to the store, by compareSet; every later one learns that, and compares. A member removes
// what it wrote when it compares a later collective: it waits for that one only after the first has
// ended.
//
// Events are recorded while no lock is held: a host that is far ahead of its device may wait there,
// and the watcher must go on.

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
  num_issued_ = waits_for_ = awaited_ = compared_ = 0;
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
  std::optional<c10::Event> joined;
  if (output.defined() && !output.is_cpu()) joined = recorded(output.device());
  const std::lock_guard lock(mutex_);
  const int64_t number = ++num_issued_;
  if (joined) on_device_.called(number, output.device(), *std::move(joined));
  while (last_.size() >= kLast && !on_device_.is_pending(last_.front().number)) last_.pop_front();
  last_.push_back({op, number, sizes(input), sizes(output),
                   input.defined() ? c10::toString(input.scalar_type()) : "", steady_seconds(),
                   false, nullptr});
  return number;
}

c10::Event CollectiveLog::recorded(c10::Device device) {
  c10::Event event = [&] {
    const std::lock_guard lock(mutex_);
    return on_device_.take_event(device);
  }();
  event.record(current_stream(device));
  return event;
}

void CollectiveLog::set_work(int64_t number, const void* work) {
  const std::lock_guard lock(mutex_);
  for (Collective& one : last_) {
    if (one.work == work) one.work = nullptr;  // nobody waited for it, and it is gone
    if (one.number == number) one.work = work;
  }
}

int64_t CollectiveLog::number_of(const void* work) const {
  const auto found = std::ranges::find(last_, work, &Collective::work);
  return found == last_.end() ? 0 : found->number;
}

// A host that waits for a collective of a device waits for room in its queue, if at all.
int64_t CollectiveLog::host_waits_for() const {
  return on_device_.device_of(waits_for_) ? 0 : waits_for_;
}

void CollectiveLog::begin_wait(const void* work) {
  int64_t number = 0;
  std::optional<c10::Device> device;
  {
    const std::lock_guard lock(mutex_);
    waits_for_ = number = number_of(work);
    device = on_device_.device_of(number);
  }
  if (!device) return;
  c10::Event reached = recorded(*device);
  const std::lock_guard lock(mutex_);
  on_device_.begin_wait(number, current_stream(*device), std::move(reached));
}

void CollectiveLog::end_wait(const void* work) {
  int64_t number = 0;
  std::optional<c10::Device> device;
  {
    const std::lock_guard lock(mutex_);
    waits_for_ = 0;
    number = number_of(work);
    for (Collective& one : last_) {
      if (one.number != number) continue;
      one.is_done = true;
      one.work = nullptr;
    }
    device = on_device_.device_of(number);
  }
  if (!device) return;
  c10::Event passed = recorded(*device);
  const std::lock_guard lock(mutex_);
  on_device_.end_wait(number, std::move(passed));
}

GroupState CollectiveLog::state() {
  const std::lock_guard lock(mutex_);
  DeviceCollectives::State device = on_device_.state();
  GroupState state{.name = name_,
                   .members = members_,
                   .issued = num_issued_,
                   .joined = device.joined.value_or(num_issued_),
                   .waits_for = host_waits_for(),
                   .device_waits = std::move(device.waits),
                   .last = {last_.begin(), last_.end()}};
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
    int64_t number = host_waits_for();
    if (number == 0) {
      const std::vector<DeviceWait> waits = on_device_.state().waits;
      if (!waits.empty()) number = waits.front().number;
    }
    const double now = steady_seconds();
    if (number != awaited_) {
      awaited_ = number;
      awaited_since_ = now;
    }
    const auto found = std::ranges::find(last_, number, &Collective::number);
    if (found == last_.end() || number == compared_ || now < awaited_since_ + kSlow) return "";
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
