#include "pipewright/executor/device_progress.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>

#include "pipewright/comms/poll.h"

namespace pipewright::executor {
namespace {

// A wait for the device looks for failures this often. It pauses for 1 / kPatience of the time
// waited, because a step may take no longer than this.
constexpr std::chrono::milliseconds kGlance{10};
constexpr int kPatience = 100;

}  // namespace

void DeviceProgress::mark(const PlannedAction& compute) { record(compute); }

void DeviceProgress::mark_end() { record({}); }

void DeviceProgress::record(const PlannedAction& action) {
  if (num_marks_ == marks_.size()) marks_.push_back({action, c10::Event(device_.type())});
  Mark& mark = marks_[num_marks_++];
  mark.action = action;
  const c10::impl::VirtualGuardImpl device(device_.type());
  mark.event.record(device.getStream(device_.has_index() ? device_ : device.getDevice()));
}

bool DeviceProgress::is_done() const {
  return num_marks_ == 0 || marks_[num_marks_ - 1].event.query();
}

const PlannedAction* DeviceProgress::under_way() const {
  for (size_t i = 0; i + 1 < num_marks_; ++i) {
    if (!marks_[i].event.query()) return &marks_[i].action;
  }
  return nullptr;
}

// What is aborted ends as well. But groups are aborted after the failure is known, so it is looked
// at after the device.
void await_device(at::Device device, const comms::FailureDomain& failures) {
  DeviceProgress queued(device);
  queued.mark_end();
  for (bool is_done = false; !is_done;) {
    is_done = comms::poll(kGlance, kPatience, [&] { return queued.is_done(); });
    failures.throw_if_failed();
  }
}

}  // namespace pipewright::executor
