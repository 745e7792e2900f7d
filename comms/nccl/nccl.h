#ifndef PIPEWRIGHT_COMMS_NCCL_NCCL_H_
#define PIPEWRIGHT_COMMS_NCCL_NCCL_H_

#include <chrono>
#include <functional>
#include <string>

#include "pipewright/comms/nccl/nccl_options.h"
#include "pipewright/comms/process/environment.h"
#include "pipewright/comms/world.h"

namespace pipewright::comms {

struct NcclOptions {
  // The world's timeout. NCCL's own watchdog has a longer one (nccl_timeout()).
  std::chrono::milliseconds timeout = kDefaultTimeout;
  // The settings of a group by its name, such as "channel.0-1[0,4]#0" (nccl_options.h); null for
  // nccl_defaults(kind_of(name)).
  std::function<NcclGroupOptions(const std::string& name)> group = nullptr;
};

// The GPU of this process: that of its local rank, or the only one that it sees. Throws
// std::invalid_argument if there is none.
at::Device nccl_device(const Environment& environment);

// Creates the world of ranks that are processes and communicate over NCCL, each with one GPU. Built
// only under --config=cuda.
//
//   const Environment environment = read_environment();
//   World world = nccl_world(environment);
//   c10::DeviceGuard guard(nccl_device(environment));
//
// A communicator is connected when its group is made, not at its first operation; a group of one
// rank has none, unless that is the whole world (thread_backend.h). PyTorch's flight
// recorder and watchdog report a group by its name and the world ranks of its members. Blocks until
// the store is reachable. Throws like nccl_device().
World nccl_world(const Environment& environment, const NcclOptions& options = {});

// The groups of such a world, for a World that is made by hand: of rank `world_rank` on `device`,
// with a store that all ranks share. Sets variables of the environment (nccl_environment()), so
// call it before other threads read any.
MakeBackend nccl_backends(int world_rank, at::Device device, const StorePtr& store,
                          const NcclOptions& options = {});

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_NCCL_NCCL_H_
