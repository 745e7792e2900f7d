#ifndef PIPEWRIGHT_COMMS_NCCL_H_
#define PIPEWRIGHT_COMMS_NCCL_H_

#include "pipewright/comms/world.h"

namespace pipewright::comms {

// Creates the world of ranks that are processes and communicate over NCCL, each with the GPU of its
// local rank. Built only under --config=cuda.
//
//   const Environment environment = read_environment();
//   World world = nccl_world(environment);
//   c10::DeviceGuard guard(at::Device(at::kCUDA, environment.local_rank));  // before make_group()
//
// The caller must make its device current before it creates groups: a communicator is connected
// when it is created, not at its first operation. Blocks until the store is reachable. Throws
// std::invalid_argument if the machine has no GPU of that index.
World nccl_world(const Environment& environment,
                 std::chrono::milliseconds timeout = kDefaultTimeout);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_NCCL_H_
