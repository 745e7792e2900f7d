#include "examples/device.h"
#include "examples/usage_error.h"
#include "pipewright/comms/gloo/gloo.h"

namespace pipewright::examples {

at::Device find_device(const std::string& name, const comms::Environment&) {
  if (name == "cpu") return at::kCPU;
  throw UsageError("--device " + name +
                   ": this program was built without CUDA; build //examples:train_gpt_cuda with "
                   "--config=cuda");
}

comms::World process_world(at::Device, const comms::Environment& environment,
                           std::chrono::milliseconds timeout) {
  return comms::gloo_world(environment, timeout);
}

std::shared_ptr<const void> show_ranges(at::Device) { return nullptr; }

}  // namespace pipewright::examples
