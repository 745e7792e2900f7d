// Replaces the weak symbols of tests/support/ranks, so that test bodies run on GPUs: each rank, a
// thread, on its own one over NCCL. If there are fewer, ranks share GPUs: over NCCL where it takes
// several ranks per GPU (2.30 or newer, with NCCL_MULTI_RANK_GPU_ENABLE=1), otherwise all on the
// first one over comms/threads/threads.h, where data parallelism needs an executor. Says on stdout
// which.
#include "tests/support/ranks/ground.h"

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/nccl/nccl.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::tests {
namespace {

thread_local std::optional<at::Device> own_device;

bool use_nccl(int ranks) {
  const char* shares = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return static_cast<int>(at::getNumGPUs()) >= ranks || (shares && std::string_view(shares) == "1");
}

at::Device device_of(int rank, int ranks) {
  const int index = use_nccl(ranks) ? rank % static_cast<int>(at::getNumGPUs()) : 0;
  return {at::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

}  // namespace

at::Device here() { return own_device.value_or(at::Device(at::kCPU)); }

c10::DeviceType device_type() { return c10::DeviceType::CUDA; }

bool has_hosts_bits() { return false; }

std::vector<comms::World> make_worlds(int size, const comms::ThreadOptions& options) {
  const int gpus = static_cast<int>(at::getNumGPUs());
  std::printf("ranks: %s\n", !use_nccl(size) ? "threads that share a GPU"
                             : gpus < size   ? "NCCL, several per GPU"
                                             : "NCCL");
  if (!use_nccl(size)) return comms::thread_worlds(size, options);
  const comms::StorePtr store = c10::make_intrusive<c10d::HashStore>();
  const auto watcher = std::make_shared<comms::Watcher>();
  std::vector<comms::World> worlds;
  for (int rank = 0; rank < size; ++rank) {
    worlds.emplace_back(
        rank, size, store,
        comms::nccl_backends(rank, device_of(rank, size), store, {.timeout = options.timeout}),
        options.timeout, watcher);
  }
  return worlds;
}

// A rank uses a stream that is not the default one, on which autograd's threads start.
RankBody prepare_ranks(int size, const RankBody& body) {
  return [=](int rank) {
    own_device = device_of(rank, size);
    const c10::DeviceGuard device(*own_device);
    c10::cuda::device_synchronize();  // with what made the inputs
    {
      const c10::StreamGuard stream(c10::cuda::getStreamFromPool(false, own_device->index()));
      body(rank);
    }
    c10::cuda::device_synchronize();
  };
}

}  // namespace pipewright::tests
