// Invariant: events end in the order in which they were recorded, so that the first one that has
// not ended tells where the device is.
#include "pipewright/executor/device_progress.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <utility>

#include "pipewright/comms/poll.h"
#include "pipewright/comms/steady_seconds.h"

namespace pipewright::executor {
namespace {

// A wait for the device looks for failures this often. It pauses for 1 / kPatience of the time
// waited, because a step may take no longer than this.
constexpr std::chrono::milliseconds kGlance{10};
constexpr int kPatience = 100;

c10::Stream current_stream(at::Device device) {
  const c10::impl::VirtualGuardImpl backend(device.type());
  return backend.getStream(device.has_index() ? device : backend.getDevice());
}

}  // namespace

void DeviceProgress::begin(int64_t step, bool evaluates) {
  const std::lock_guard lock(mutex_);
  const auto is_over = [](const Step& known) {
    return known.marks.empty() || known.marks.back().event.query();
  };
  while (!steps_.empty() && is_over(steps_.front())) {
    reuse(&steps_.front());
    steps_.pop_front();
  }
  steps_.push_back({step, evaluates, {}, std::nullopt});
}

void DeviceProgress::mark(int action, int transfer) {
  const std::lock_guard lock(mutex_);
  record(action, transfer);
}

void DeviceProgress::end(const Progress::Moment& host) {
  const std::lock_guard lock(mutex_);
  record(-1, -1);
  steps_.back().ended = host;
}

void DeviceProgress::clear() {
  const std::lock_guard lock(mutex_);
  for (Step& step : steps_) reuse(&step);
  steps_.clear();
}

void DeviceProgress::record(int action, int transfer) {
  if (unused_.empty()) unused_.emplace_back(device_.type());
  std::vector<Mark>& marks = steps_.back().marks;
  marks.push_back({action, transfer, comms::steady_seconds(), std::move(unused_.back())});
  unused_.pop_back();
  stream_ = current_stream(device_);
  marks.back().event.record(*stream_);
}

void DeviceProgress::reuse(Step* step) {
  for (Mark& mark : step->marks) unused_.push_back(std::move(mark.event));
}

std::optional<Progress::Moment> DeviceProgress::under_way(const Progress::Moment& host) const {
  const std::lock_guard lock(mutex_);
  for (const Step& step : steps_) {
    for (size_t i = 0; i < step.marks.size(); ++i) {
      const Mark& mark = step.marks[i];
      if (mark.event.query()) continue;
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
  queued.record(current_stream(device));
  for (bool is_done = false; !is_done;) {
    is_done = comms::poll(kGlance, kPatience, [&] { return queued.query(); });
    failures.throw_if_failed();
  }
}

}  // namespace pipewright::executor
