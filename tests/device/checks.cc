// Checks every test of the binary that links it: at its end all work is drained, and a race or a
// failed kernel fails it. `--gtest_repeat=20` runs the tests with the seeds 0 to 19.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "tests/device/device.h"

namespace pipewright::testdevice {
namespace {

constexpr size_t kShownRaces = 3;

class Checks final : public testing::EmptyTestEventListener {
  void OnTestIterationStart(const testing::UnitTest&, int iteration) override {
    // The CPU's flash kernel computes other bits than the composed attention of a device.
    at::globalContext().setSDPUseFlash(false);
    seed_ = static_cast<uint64_t>(iteration);
  }
  void OnTestStart(const testing::TestInfo&) override { seed(seed_); }
  void OnTestEnd(const testing::TestInfo&) override {
    try {
      drain();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "seed " << seed_ << ": " << error.what();
    }
    const std::vector<std::string> races = testdevice::races();
    for (size_t i = 0; i < std::min(races.size(), kShownRaces); ++i)
      ADD_FAILURE() << "seed " << seed_ << ", race " << i + 1 << " of " << races.size() << ": "
                    << races[i];
    for (const std::string& error : errors()) ADD_FAILURE() << "seed " << seed_ << ": " << error;
  }

  uint64_t seed_ = 0;
};

[[maybe_unused]] const bool checks_are_added = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new Checks);
  return true;
}();

}  // namespace
}  // namespace pipewright::testdevice
