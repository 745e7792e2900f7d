// The only file of comms that includes CUDA headers.
#define USE_C10D_NCCL 1
#include "pipewright/comms/nccl.h"

#include <ATen/Context.h>
#include <c10/util/StringUtil.h>

#include <stdexcept>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace pipewright::comms {

World nccl_world(const Environment& environment, std::chrono::milliseconds timeout) {
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(environment.local_rank));
  const size_t gpus = at::getNumGPUs();
  if (static_cast<size_t>(environment.local_rank) >= gpus) {
    throw std::invalid_argument(c10::str("NCCL: expected a local rank below ", gpus,
                                         ", the number of GPUs of this machine, got ",
                                         environment.local_rank));
  }
  const StorePtr store = connect_store(environment, timeout);
  const MakeBackend make = [=](const std::string& name, int rank, int size) -> BackendPtr {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = timeout;
    auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        c10::make_intrusive<c10d::PrefixStore>(name, store), rank, size, options);
    backend->setBoundDeviceId(device);
    backend->eagerConnectSingleDevice(device);
    return backend;
  };
  return World(environment.rank, environment.world_size, store, make, timeout);
}

}  // namespace pipewright::comms
