#ifndef PIPEWRIGHT_EXECUTOR_STEP_CLOCK_H_
#define PIPEWRIGHT_EXECUTOR_STEP_CLOCK_H_

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <vector>

#include "pipewright/comms/steady_seconds.h"

namespace pipewright::executor {

// Tells when the work of a step reached certain points, which are numbered from 0: HostClock for
// work that the host does itself, DeviceClock (device_clock.h) for what it queues. Torch-free. For
// one thread.
class StepClock {
 public:
  virtual ~StepClock() = default;

  // Forgets all points.
  virtual void begin_step() = 0;
  // The work has come to these points at once, or will when it has done what has been queued.
  // Marking a point again replaces its time. Never blocks.
  virtual void mark(std::initializer_list<size_t> points) = 0;
  // By point, in seconds of the host's steady clock; nullopt for a point that was not marked.
  // Blocks until the marked points have been reached.
  virtual std::vector<std::optional<double>> seconds() = 0;
};

// The time of the host when it marks a point.
class HostClock final : public StepClock {
 public:
  explicit HostClock(size_t num_points) : seconds_(num_points) {}

  void begin_step() override { seconds_.assign(seconds_.size(), std::nullopt); }
  void mark(std::initializer_list<size_t> points) override {
    const double now = comms::steady_seconds();
    for (const size_t point : points) seconds_[point] = now;
  }
  std::vector<std::optional<double>> seconds() override { return seconds_; }

 private:
  std::vector<std::optional<double>> seconds_;
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_STEP_CLOCK_H_
