#include "tests/support/ranks/ground.h"

namespace pipewright::tests {

[[gnu::weak]] at::Device here() { return at::kCPU; }

at::TensorOptions here(at::ScalarType dtype) { return at::TensorOptions(here()).dtype(dtype); }

[[gnu::weak]] std::vector<comms::World> make_worlds(int size, const comms::ThreadOptions& options) {
  return comms::thread_worlds(size, options);
}

[[gnu::weak]] c10::DeviceType device_type() { return c10::DeviceType::CPU; }

[[gnu::weak]] bool has_hosts_bits() { return true; }

bool is_on_device() { return device_type() != c10::DeviceType::CPU; }

}  // namespace pipewright::tests
