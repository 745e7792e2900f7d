// Invariant: events end in the order in which they were recorded, so that the first one that has
// not ended tells where the device is.
#include "pipewright/executor/hang/device_progress.h"

#include <chrono>
#include <utility>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/process/sockets.h"
#include "pipewright/comms/process/steady_seconds.h"

namespace pipewright::executor {
namespace {

// A wait for the device looks for failures this often. It pauses for 1 / kDevicePatience of the
// time waited, because a step may take no longer than this.
constexpr std::chrono::milliseconds kGlance{10};
constexpr int kDevicePatience = 100;

}  // namespace

void DeviceProgress::begin(int64_t step, bool evaluates) {
  const std::lock_guard lock(mutex_);
  const auto is_over = [](const Step& known) {
    return known.marks.empty() || comms::has_ended(known.marks.back().event);
  };
  while (!steps_.empty() && is_over(steps_.front())) {
    reuse(&steps_.front());
    steps_.pop_front();
  }
  steps_.push_back({step, evaluates, {}, std::nullopt});
  stream_ = comms::current_stream(device_);
}

void DeviceProgress::end(const Progress::Moment& host) {
  mark(-1, -1);
  const std::lock_guard lock(mutex_);
  steps_.back().ended = host;
}

void DeviceProgress::clear() {
  const std::lock_guard lock(mutex_);
  for (Step& step : steps_) reuse(&step);
  steps_.clear();
}

// The event is recorded while no lock is held: a host that is far ahead of its device may wait
// there, and the watcher must go on.
void DeviceProgress::mark(int action, int transfer) {
  c10::Event event = [this] {
    const std::lock_guard lock(mutex_);
    return events_.take(device_.type());
  }();
  const c10::Stream stream = comms::current_stream(device_);
  event.record(stream);
  const std::lock_guard lock(mutex_);
  stream_ = stream;
  steps_.back().marks.push_back({action, transfer, comms::steady_seconds(), std::move(event)});
}

void DeviceProgress::reuse(Step* step) {
  for (Mark& mark : step->marks) events_.give_back(std::move(mark.event));
}

std::optional<Progress::Moment> DeviceProgress::under_way(const Progress::Moment& host) const {
  const std::lock_guard lock(mutex_);
  for (const Step& step : steps_) {
    for (size_t i = 0; i < step.marks.size(); ++i) {
      const Mark& mark = step.marks[i];
      if (comms::has_ended(mark.event)) continue;
      Progress::Moment moment = step.ended.value_or(host);
      moment.phase = mark.action < 0 ? Phase::kEnds : Phase::kRuns;
      moment.step = step.number;
      moment.evaluates = step.evaluates;
      moment.action = mark.action;
      moment.waits_for = mark.transfer;
      moment.seconds = comms::steady_seconds() - mark.queued;
      // What the host has queued a wait for counts as done there.
      for (size_t j = i; j < step.marks.size(); ++j) {
        if (const int transfer = step.marks[j].transfer; transfer >= 0)
          moment.transfers[static_cast<size_t>(transfer)] = Progress::Transfer::kPosted;
      }
      return moment;
    }
  }
  return std::nullopt;
}

std::optional<c10::Stream> DeviceProgress::stream() const {
  const std::lock_guard lock(mutex_);
  return stream_;
}

// What is aborted ends as well. But groups are aborted after the failure is known, so it is looked
// at after the device.
void await_device(at::Device device, const comms::FailureDomain& failures) {
  c10::Event queued(device.type());
  queued.record(comms::current_stream(device));
  for (bool is_done = false; !is_done;) {
    is_done = comms::poll(kGlance, kDevicePatience, [&] { return queued.query(); });
    failures.throw_if_failed();
  }
}

}  // namespace pipewright::executor
