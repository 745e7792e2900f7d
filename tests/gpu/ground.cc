// Replaces the weak symbols of tests/support/ranks, so that test bodies run on GPUs: each rank, a
// thread, on its own one over NCCL; or all ranks on the first one over comms/threads/threads.h, if
// there are fewer. There data parallelism needs an executor.
#include "tests/support/ranks/ground.h"

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <optional>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/nccl/nccl.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::tests {
namespace {

thread_local std::optional<at::Device> own_device;

bool have_one_each(int ranks) { return static_cast<int>(at::getNumGPUs()) >= ranks; }

at::Device device_of(int rank, int ranks) {
  return {at::kCUDA, static_cast<c10::DeviceIndex>(have_one_each(ranks) ? rank : 0)};
}

}  // namespace

at::Device here() { return own_device.value_or(at::Device(at::kCPU)); }

c10::DeviceType device_type() { return c10::DeviceType::CUDA; }

bool has_hosts_bits() { return false; }

std::vector<comms::World> make_worlds(int size, const comms::ThreadOptions& options) {
  if (!have_one_each(size)) return comms::thread_worlds(size, options);
  const comms::StorePtr store = c10::make_intrusive<c10d::HashStore>();
  const auto watcher = std::make_shared<comms::Watcher>();
  std::vector<comms::World> worlds;
  for (int rank = 0; rank < size; ++rank) {
    worlds.emplace_back(
        rank, size, store,
        comms::nccl_backends(device_of(rank, size), store, {.timeout = options.timeout}),
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
