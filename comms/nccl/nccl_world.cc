#include "pipewright/comms/nccl/nccl.h"
#include "pipewright/comms/threads/thread_backend.h"

namespace pipewright::comms {

World nccl_world(const Environment& environment, const NcclOptions& options) {
  const at::Device device = nccl_device(environment);
  return world_with_local_groups(environment, options.timeout, [&](const StorePtr& store) {
    return nccl_backends(environment.rank, device, store, options);
  });
}

}  // namespace pipewright::comms
