// Calls are forgotten when their wait has ended, or if nobody has waited for them for long, when
// the device has joined them: so there are at most as many as the host is ahead of the device, and
// kMany.
#include "pipewright/comms/device_collectives.h"

#include <algorithm>
#include <utility>

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

}  // namespace pipewright::comms
