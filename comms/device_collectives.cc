// Whether events have ended is asked only in state(): a question costs as much as recording one.
#include "pipewright/comms/device_collectives.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "pipewright/comms/steady_seconds.h"

namespace pipewright::comms {
namespace {

constexpr int64_t kMany = 256;  // later calls after which nobody will wait for a collective

c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

void DeviceCollectives::called(int64_t number, at::Device device) {
  while (!calls_.empty() && !calls_.front().reached && calls_.front().number + kMany <= number) {
    unused_.push_back(std::move(calls_.front().joined));
    calls_.pop_front();
  }
  calls_.push_back({number, device, steady_seconds(), record(current_stream(device)), {}, {}, {}});
}

void DeviceCollectives::begin_wait(int64_t number) {
  if (Call* call = find(number)) {
    call->stream = current_stream(call->device);
    call->reached = record(*call->stream);
  }
}

void DeviceCollectives::end_wait(int64_t number) {
  if (Call* call = find(number)) call->passed = record(current_stream(call->device));
}

void DeviceCollectives::clear() {
  forget([](const Call&) { return true; });
}

DeviceCollectives::State DeviceCollectives::state(double until) {
  forget([&](const Call& call) { return call.seconds < until && has_passed(call); });
  State state;
  for (const Call& call : calls_) {
    if (call.seconds >= until) break;
    if (!call.joined.query()) {
      state.joined = call.number - 1;
      break;
    }
    if (call.reached && call.reached->query() && !has_passed(call) && state.waits_for == 0) {
      state.waits_for = call.number;
      state.stream = call.stream;
    }
  }
  return state;
}

bool DeviceCollectives::is_pending(int64_t number) {
  const Call* call = find(number);
  return call && !has_passed(*call);
}

c10::Event DeviceCollectives::record(const c10::Stream& stream) {
  if (unused_.empty()) unused_.emplace_back(stream.device_type());
  c10::Event event = std::move(unused_.back());
  unused_.pop_back();
  event.record(stream);
  return event;
}

DeviceCollectives::Call* DeviceCollectives::find(int64_t number) {
  const auto found = std::ranges::lower_bound(calls_, number, {}, &Call::number);
  return found == calls_.end() || found->number != number ? nullptr : &*found;
}

bool DeviceCollectives::has_passed(const Call& call) { return call.passed && call.passed->query(); }

template <typename Predicate>
void DeviceCollectives::forget(const Predicate& is_over) {
  std::erase_if(calls_, [&](Call& call) {
    if (!is_over(call)) return false;
    unused_.push_back(std::move(call.joined));
    for (auto* event : {&call.reached, &call.passed}) {
      if (*event) unused_.push_back(std::move(**event));
    }
    return true;
  });
}

}  // namespace pipewright::comms
