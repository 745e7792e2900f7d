#ifndef PIPEWRIGHT_EXECUTOR_HANG_DEVICE_PROGRESS_H_
#define PIPEWRIGHT_EXECUTOR_HANG_DEVICE_PROGRESS_H_

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "pipewright/comms/device_event.h"
#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/executor/hang/rank_report.h"

namespace pipewright::executor {

// How far a device has come in the steps that a host has queued: an event on the current stream
// after each compute, and before and after each wait for a SEND or RECV. The host may be steps
// ahead of the device. One thread runs the steps; any thread may ask.
class DeviceProgress {
 public:
  explicit DeviceProgress(at::Device device) : device_(device) {}

  // ---- the thread that runs the steps

  // What the host does next; see Progress::begin().
  void begin(int64_t step, bool evaluates);
  // The host has queued a compute, what precedes a wait, or the wait for a SEND or RECV, on behalf
  // of an action. Both are indices of the row; -1: none.
  void mark(int action, int transfer);
  // Everything has been queued. `host` is where the host is.
  void end(const Progress::Moment& host);
  // Forgets all steps, whose work has ended or been aborted.
  void clear();

  // ---- any thread

  // Where the device is in the first step that it has not ended: what it computes or waits for
  // there. nullopt if it has ended all that the host has queued. `host` is where the host is.
  std::optional<Progress::Moment> under_way(const Progress::Moment& host) const;
  // The stream on which the host has queued its last compute; nullopt before the first step.
  std::optional<c10::Stream> stream() const;

 private:
  struct Mark {
    int action, transfer;
    double queued;  // by steady_seconds()
    c10::Event event;
  };
  struct Step {
    int64_t number;
    bool evaluates;
    std::vector<Mark> marks;
    std::optional<Progress::Moment> ended;  // where the host was then
  };
  void reuse(Step* step);

  const at::Device device_;
  mutable std::mutex mutex_;
  std::deque<Step> steps_;  // in order; the device may not have ended them
  comms::EventPool events_;
  std::optional<c10::Stream> stream_;
};

// Blocks the host until the device has done what was queued on the current stream, whose waits can
// last as long as a peer does not answer. Throws std::runtime_error if the world fails meanwhile.
void await_device(at::Device device, const comms::FailureDomain& failures);

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_HANG_DEVICE_PROGRESS_H_
