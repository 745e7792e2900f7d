#ifndef PIPEWRIGHT_TESTS_SUPPORT_METER_METER_H_
#define PIPEWRIGHT_TESTS_SUPPORT_METER_METER_H_

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

namespace pipewright::tests {

// Measures tensor memory: the bytes that this thread has allocated and not freed since the meter
// was created.
class Meter {
 public:
  Meter() : Meter(std::make_shared<Count>()) {}
  // Only memory of these devices.
  explicit Meter(c10::DeviceType device) : Meter(std::make_shared<Count>(device)) {}
  // Adds this thread to the count of another meter, for tensors that one thread allocates and
  // another frees.
  static Meter together_with(const Meter& other) { return Meter(other.count_); }

  int64_t bytes() const {
    const std::lock_guard lock(count_->mutex);
    return count_->now;
  }
  // The highest value of bytes() since the meter was created or restart_peak() was called.
  int64_t peak() const {
    const std::lock_guard lock(count_->mutex);
    return count_->peak;
  }
  void restart_peak() const {
    const std::lock_guard lock(count_->mutex);
    count_->peak = count_->now;
  }

 private:
  struct Count final : c10::MemoryReportingInfoBase {
    explicit Count(std::optional<c10::DeviceType> only = std::nullopt) : only_device(only) {}
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
      if (only_device && device.type() != *only_device) return;
      const std::lock_guard lock(mutex);
      now += bytes;
      peak = std::max(peak, now);
    }
    bool memoryProfilingEnabled() const override { return true; }
    const std::optional<c10::DeviceType> only_device;
    std::mutex mutex;
    int64_t now = 0, peak = 0;
  };

  explicit Meter(std::shared_ptr<Count> count) : count_(std::move(count)) {}

  const std::shared_ptr<Count> count_;
  const c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, count_};
};

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SUPPORT_METER_METER_H_
