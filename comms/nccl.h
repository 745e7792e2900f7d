#ifndef PIPEWRIGHT_COMMS_NCCL_H_
#define PIPEWRIGHT_COMMS_NCCL_H_

#include "pipewright/comms/world.h"

namespace pipewright::comms {

// Ranks as processes, each with the GPU of its local rank, over NCCL. Built under --config=cuda
// alone. The caller makes its device current (c10::DeviceGuard) before it makes groups; a
// communicator is connected at once. Throws c10::Error where there is no such GPU.
World nccl_world(const Environment& environment,
                 std::chrono::milliseconds timeout = kDefaultTimeout);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_NCCL_H_
