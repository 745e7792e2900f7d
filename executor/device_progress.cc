#include "pipewright/executor/device_progress.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace pipewright::executor {

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

}  // namespace pipewright::executor
