#include "pipewright/executor/device_clock.h"

#include <limits>

#include "pipewright/comms/device_event.h"

namespace pipewright::executor {
namespace {

c10::Event timed_event(at::Device device) {
  return {device.type(), c10::EventFlag::BACKEND_DEFAULT};
}

}  // namespace

DeviceClock::DeviceClock(at::Device device, size_t num_points)
    : device_(device), begin_(timed_event(device)), event_of_(num_points) {}

void DeviceClock::begin_step() {
  event_of_.assign(event_of_.size(), std::nullopt);
  num_recorded_ = 0;
  record(&begin_);
}

void DeviceClock::mark(std::initializer_list<size_t> points) {
  if (num_recorded_ == events_.size()) events_.push_back(timed_event(device_));
  record(&events_[num_recorded_]);
  for (const size_t point : points) event_of_[point] = num_recorded_;
  ++num_recorded_;
}

std::vector<std::optional<double>> DeviceClock::seconds() {
  std::vector<std::optional<double>> seconds(event_of_.size());
  if (!begin_.was_marked_for_recording()) return seconds;
  const auto since_begin = [&](const c10::Event& event) {
    return begin_.elapsedTime(event) * 1e-3;
  };
  // The first round waits for the work of the step, so it is never the fastest if there is any.
  constexpr int kRounds = 6;
  double fastest = std::numeric_limits<double>::infinity(), host_begin = 0;
  c10::Event now = timed_event(device_);
  for (int round = 0; round < kRounds; ++round) {
    const double before = comms::steady_seconds();
    record(&now);
    now.synchronize();
    const double after = comms::steady_seconds();
    if (after - before >= fastest) continue;
    fastest = after - before;
    host_begin = (before + after) / 2 - since_begin(now);
  }
  for (size_t point = 0; point < seconds.size(); ++point) {
    if (event_of_[point]) seconds[point] = host_begin + since_begin(events_[*event_of_[point]]);
  }
  return seconds;
}

void DeviceClock::record(c10::Event* event) const { event->record(comms::current_stream(device_)); }

}  // namespace pipewright::executor
