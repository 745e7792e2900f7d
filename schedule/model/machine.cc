#include "pipewright/schedule/model/machine.h"

#include <algorithm>
#include <iterator>

namespace pipewright::schedule {
namespace {

struct Gpu {
  std::string_view name;
  double teraflops, memory, memory_bandwidth, nvlink, network, host;
  int per_node;
};
constexpr Gpu kGpus[] = {
#define GPU(...) {__VA_ARGS__},
#include "pipewright/schedule/model/gpus.def"
#undef GPU
};

}  // namespace

std::optional<Machine> find_gpu(std::string_view name) {
  const auto gpu = std::ranges::find(kGpus, name, &Gpu::name);
  if (gpu == std::end(kGpus)) return std::nullopt;
  return Machine{.name = std::string(name),
                 .peak = gpu->teraflops * 1e12,
                 .memory = gpu->memory * 1e9,
                 .memory_bandwidth = gpu->memory_bandwidth * 1e9,
                 .nvlink_bandwidth = gpu->nvlink * 1e9,
                 .network_bandwidth = gpu->network * 1e9,
                 .host_bandwidth = gpu->host * 1e9,
                 .gpus_per_node = gpu->per_node};
}

std::vector<std::string_view> gpu_names() {
  std::vector<std::string_view> names;
  for (const Gpu& gpu : kGpus) names.push_back(gpu.name);
  return names;
}

}  // namespace pipewright::schedule
