// The only file of comms that includes CUDA headers.
#define USE_C10D_NCCL 1
#include "pipewright/comms/nccl.h"

#include <ATen/Context.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "pipewright/comms/gpu_index.h"
#include "pipewright/comms/group_name.h"

namespace pipewright::comms {
namespace {

using Options = c10d::ProcessGroupNCCL::Options;

c10::intrusive_ptr<Options> options_of(const std::string& name, const NcclOptions& world) {
  const NcclGroupOptions group = world.group ? world.group(name) : NcclGroupOptions();
  auto options = Options::create(group.high_priority_stream);
  options->timeout = world.timeout;
  options->group_name = name;
  options->group_desc = name;
  for (const int rank : members_of(name))
    options->global_ranks_in_group.push_back(static_cast<uint64_t>(rank));
  if (group.min_ctas > 0) options->config.minCTAs = group.min_ctas;
  if (group.max_ctas > 0) options->config.maxCTAs = group.max_ctas;
  if (group.nonblocking) options->config.blocking = 0;
  return options;
}

}  // namespace

at::Device nccl_device(const Environment& environment) {
  const int index = gpu_index(environment, static_cast<int>(at::getNumGPUs()));
  return {at::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

World nccl_world(const Environment& environment, const NcclOptions& options) {
  const at::Device device = nccl_device(environment);
  const StorePtr store = connect_store(environment, options.timeout);
  const MakeBackend make = [=](const std::string& name, int rank, int size) -> BackendPtr {
    auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        c10::make_intrusive<c10d::PrefixStore>(name, store), rank, size, options_of(name, options));
    backend->setGroupDesc(name);
    backend->setBoundDeviceId(device);
    backend->eagerConnectSingleDevice(device);
    return backend;
  };
  return World(environment.rank, environment.world_size, store, make, options.timeout);
}

}  // namespace pipewright::comms
