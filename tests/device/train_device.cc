// examples/device.h on the simulated device: what `--device cuda` is for train_gpt_on_device. Its
// ranks are threads that share the device. At the end it says on stderr how often a host waited.
#include <cstdio>

#include "examples/device.h"
#include "examples/usage_error.h"
#include "tests/device/device.h"

namespace pipewright::examples {

at::Device find_device(const std::string& name, const comms::Environment&) {
  if (name == "cpu") return at::kCPU;
  testdevice::seed(1);
  return testdevice::device(0);
}

comms::World process_world(at::Device, const comms::Environment&, std::chrono::milliseconds) {
  throw UsageError("expected ranks that are threads");
}

std::shared_ptr<const void> show_ranges(at::Device) {
  return std::shared_ptr<const void>(new char, [](const void* allocated) {
    delete static_cast<const char*>(allocated);
    for (const auto& [name, count] : testdevice::host_syncs())
      std::fprintf(stderr, "waits: %s %lld\n", name.c_str(), static_cast<long long>(count));
    for (const std::string& race : testdevice::races())
      std::fprintf(stderr, "race: %s\n", race.c_str());
  });
}

}  // namespace pipewright::examples
