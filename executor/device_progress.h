#ifndef PIPEWRIGHT_EXECUTOR_DEVICE_PROGRESS_H_
#define PIPEWRIGHT_EXECUTOR_DEVICE_PROGRESS_H_

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <vector>

#include "pipewright/comms/failure_domain.h"
#include "pipewright/executor/row_plan.h"

namespace pipewright::executor {

// How far a device has come in a step that a host has queued: an event after each compute on the
// current stream. The thread that runs the step writes it; after mark_end() any thread may read it.
class DeviceProgress {
 public:
  explicit DeviceProgress(at::Device device) : device_(device) {}

  void begin() { num_marks_ = 0; }
  // The compute has been queued.
  void mark(const PlannedAction& compute);
  // Everything has been queued.
  void mark_end();

  bool is_done() const;
  // The first compute that the device has not ended; null if it has ended all of them.
  const PlannedAction* under_way() const;

 private:
  struct Mark {
    PlannedAction action;
    c10::Event event;
  };
  void record(const PlannedAction& action);

  const at::Device device_;
  std::vector<Mark> marks_;  // the last one is the end; reused by the next step
  size_t num_marks_ = 0;
};

// Blocks the host until the device has done what was queued on the current stream, whose waits can
// last as long as a peer does not answer. Throws std::runtime_error if the world fails meanwhile.
void await_device(at::Device device, const comms::FailureDomain& failures);

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_DEVICE_PROGRESS_H_
