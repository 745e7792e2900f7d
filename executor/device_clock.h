#ifndef PIPEWRIGHT_EXECUTOR_DEVICE_CLOCK_H_
#define PIPEWRIGHT_EXECUTOR_DEVICE_CLOCK_H_

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <vector>

#include "pipewright/executor/step_clock.h"

namespace pipewright::executor {

// When a device reached points of its current stream, by its own events, which do not block the
// host. One code path for all devices of c10 whose events have times.
//
// seconds() converts them to the time of the host: it waits for the device, records more events on
// the idle stream, and takes the middle of the fastest of these round trips. So its error is at
// most half of a round trip, the same for all points.
class DeviceClock final : public StepClock {
 public:
  DeviceClock(at::Device device, size_t num_points);

  void begin_step() override;
  void mark(std::initializer_list<size_t> points) override;
  std::vector<std::optional<double>> seconds() override;

 private:
  // Records an event with a time on the current stream.
  void record(c10::Event* event) const;

  const at::Device device_;
  c10::Event begin_;
  std::vector<std::optional<size_t>> event_of_;  // by point
  std::vector<c10::Event> events_;               // reused by the next step
  size_t num_recorded_ = 0;
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_DEVICE_CLOCK_H_
