#ifndef PIPEWRIGHT_EXAMPLES_DEVICE_H_
#define PIPEWRIGHT_EXAMPLES_DEVICE_H_

#include <c10/core/Device.h>

#include <chrono>
#include <memory>
#include <string>

#include "pipewright/comms/world.h"

// Where train_gpt trains, and how ranks that are processes communicate there. Implemented twice:
// train_gpt links cpu_device.cc, train_gpt_cuda links cuda_device.cc.

namespace pipewright::examples {

// The device of this process: `name` is "cpu" or "cuda", the GPU of its local rank. Throws
// UsageError if this program or this machine lacks it.
at::Device find_device(const std::string& name, const comms::Environment& environment);

// The world of ranks that are processes, over Gloo or NCCL.
comms::World process_world(at::Device device, const comms::Environment& environment,
                           std::chrono::milliseconds timeout);

// Shows NVIDIA's tools each action on a GPU while the result exists (nvtx_ranges.h). Null for the
// CPU.
std::shared_ptr<const void> show_ranges(at::Device device);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_DEVICE_H_
