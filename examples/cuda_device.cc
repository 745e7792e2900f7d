#include "examples/device.h"
#include "examples/usage_error.h"
#include "pipewright/comms/gloo/gloo.h"
#include "pipewright/comms/nccl/nccl.h"
#include "pipewright/executor/nvtx_ranges.h"

namespace pipewright::examples {

at::Device find_device(const std::string& name, const comms::Environment& environment) {
  if (name == "cpu") return at::kCPU;
  try {
    return comms::nccl_device(environment);
  } catch (const std::invalid_argument& error) {
    throw UsageError("--device " + name + ": " + error.what());
  }
}

comms::World process_world(at::Device device, const comms::Environment& environment,
                           std::chrono::milliseconds timeout) {
  if (device.is_cpu()) return comms::gloo_world(environment, timeout);
  return comms::nccl_world(environment, {.timeout = timeout});
}

std::shared_ptr<const void> show_ranges(at::Device device) {
  if (device.is_cpu()) return nullptr;
  return std::make_shared<const executor::NvtxRanges>();
}

}  // namespace pipewright::examples
