#define USE_C10D_GLOO 1
#include "comms/gloo.h"

#include <csignal>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace pipewright::comms {
namespace {

std::shared_ptr<::gloo::transport::Device> make_device(const Environment& environment) {
  using c10d::ProcessGroupGloo;
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME"))
    return ProcessGroupGloo::createDeviceForInterface(interface);
  if (environment.master_addr == "127.0.0.1" || environment.master_addr == "localhost")
    return ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  return ProcessGroupGloo::createDefaultDevice();
}

void ignore_sigpipe() {
  struct sigaction current;
  sigaction(SIGPIPE, nullptr, &current);
  if (current.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

World gloo_world(const Environment& environment, std::chrono::milliseconds timeout) {
  ignore_sigpipe();
  // The flight recorder is one for the process, and changes a map without a lock when several
  // groups work at once.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
  const StorePtr store = connect_store(environment, timeout);
  // One for all groups: each device has a thread of its own.
  const auto device = make_device(environment);
  const MakeBackend make = [=](const std::string& name, int rank, int size) -> BackendPtr {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(device);
    return c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>(name, store), rank, size, options);
  };
  return World(environment.rank, environment.world_size, store, make, timeout);
}

}  // namespace pipewright::comms
