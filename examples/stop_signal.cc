#include "examples/stop_signal.h"

#include <ATen/ops/full.h>

#include <atomic>
#include <csignal>
#include <vector>

#include "pipewright/comms/group.h"

namespace pipewright::examples {
namespace {

// A signal handler can reach nothing else.
std::atomic<bool> signalled = false;
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace

void listen_for_stop() {
  struct sigaction action {};
  action.sa_handler = [](int) { signalled = true; };
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGUSR1, SIGTERM}) sigaction(signal, &action, nullptr);
}

bool should_stop(c10d::Backend& ranks, at::Device device) {
  std::vector<at::Tensor> any = {at::full({1}, signalled ? 1.0F : 0.0F, at::device(device))};
  if (ranks.getSize() > 1) {
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    comms::wait(ranks, *ranks.allreduce(any, options));
  }
  return any[0].item<float>() > 0;
}

}  // namespace pipewright::examples
