#include "pipewright/comms/process/dump_signal.h"

#include <atomic>
#include <csignal>
#include <stdexcept>
#include <string>

namespace pipewright::comms {
namespace {

// A signal handler can reach nothing else: signals belong to the process.
std::atomic<int> requested = 0;
static_assert(std::atomic<int>::is_always_lock_free);

}  // namespace

void dump_on_signal(int signal) {
  struct sigaction action {};
  action.sa_handler = [](int) { requested.fetch_add(1, std::memory_order_relaxed); };
  action.sa_flags = SA_RESTART;
  if (sigaction(signal, &action, nullptr) != 0)
    throw std::runtime_error("cannot handle signal " + std::to_string(signal));
}

int dumps_requested() { return requested.load(std::memory_order_relaxed); }

}  // namespace pipewright::comms
