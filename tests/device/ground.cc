// Replaces the weak symbols of tests/support/ranks, so that test bodies run on the test device.
#include "tests/support/ranks/ground.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <memory>

#include "tests/device/backend.h"
#include "tests/device/current.h"
#include "tests/device/device.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::tests {

at::Device here() {
  return testdevice::RankScope::is_entered() ? testdevice::device(testdevice::current_device())
                                             : at::Device(at::kCPU);
}

std::vector<comms::World> make_worlds(int size, const comms::ThreadOptions& options) {
  return testdevice::device_worlds(size, {.timeout = options.timeout});
}

c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

bool has_hosts_bits() { return !testdevice::rounds_otherwise(); }

// A rank uses its own device, and a stream that is not the default one, on which autograd's threads
// start.
RankBody prepare_ranks(int size, const RankBody& body) {
  const auto scopes = std::make_shared<std::vector<std::unique_ptr<testdevice::RankScope>>>();
  for (int rank = 0; rank < size; ++rank)
    scopes->push_back(std::make_unique<testdevice::RankScope>(rank));
  return [=](int rank) {
    const std::unique_ptr<testdevice::RankScope> scope =
        std::move(scopes->at(static_cast<size_t>(rank)));
    const c10::DeviceGuard device(testdevice::device(rank));
    const c10::Stream outer = testdevice::current_stream(rank),
                      stream = testdevice::new_stream(rank);
    testdevice::order(outer, stream);
    testdevice::RankScope::enter();
    {
      const c10::StreamGuard guard(stream);
      body(rank);
    }
    testdevice::order(stream, outer);
  };
}

}  // namespace pipewright::tests
