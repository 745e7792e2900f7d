// The only file of comms that includes CUDA headers.
#define USE_C10D_NCCL 1
#include "pipewright/comms/nccl/nccl.h"

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "pipewright/comms/nccl/nccl_settings.h"

namespace pipewright::comms {
namespace {

using Options = c10d::ProcessGroupNCCL::Options;

c10::intrusive_ptr<Options> options_of(const NcclSettings& settings) {
  auto options = Options::create(settings.high_priority_stream);
  options->timeout = settings.timeout;
  options->group_name = settings.name;
  options->group_desc = settings.description;
  options->global_ranks_in_group = settings.global_ranks;
  if (settings.min_ctas) options->config.minCTAs = *settings.min_ctas;
  if (settings.max_ctas) options->config.maxCTAs = *settings.max_ctas;
  if (settings.blocking) options->config.blocking = *settings.blocking;
  return options;
}

// PyTorch's default writer ends its path with the rank in the first group of the process.
struct TraceWriter final : c10d::DebugInfoWriter {
  explicit TraceWriter(int world_rank)
      : DebugInfoWriter(nccl_trace_prefix(variables_of_process()), world_rank) {}
};

void name_traces_by(int world_rank) {
  static std::once_flag once;  // a process has one writer
  std::call_once(once, [&] {
    c10d::DebugInfoWriter::registerWriter(std::make_unique<TraceWriter>(world_rank));
  });
}

}  // namespace

at::Device nccl_device(const Environment& environment) {
  const int index = gpu_index(environment, static_cast<int>(at::getNumGPUs()));
  return {at::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

MakeBackend nccl_backends(int world_rank, at::Device device, const StorePtr& store,
                          const NcclOptions& options) {
  name_traces_by(world_rank);
  for (const auto& [name, value] : nccl_environment(variables_of_process()))
    setenv(name.c_str(), value.c_str(), 1);
  if (const std::string warning = nccl_warning(variables_of_process()); !warning.empty())
    TORCH_WARN(warning);
  return [=](const std::string& name, int rank, int size) -> BackendPtr {
    const c10::DeviceGuard guard(device);  // this may be any thread
    const NcclGroupOptions group =
        options.group ? options.group(name) : nccl_defaults(kind_of(name));
    auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        c10::make_intrusive<c10d::PrefixStore>(name, store), rank, size,
        options_of(nccl_settings(name, group, options.timeout)));
    backend->setGroupDesc(name);
    backend->setBoundDeviceId(device);
    backend->eagerConnectSingleDevice(device);
    return backend;
  };
}

}  // namespace pipewright::comms
