#include "examples/stop_signal.h"

#include <atomic>
#include <csignal>

#include "examples/any_rank.h"

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

bool StopVote::should_stop() {
  LateCopy now(any_rank(signalled, *ranks_, device_));
  if (device_.is_cpu()) return now.wait().item<float>() > 0;
  const std::optional<LateCopy> before = std::exchange(last_, std::move(now));
  return before && before->wait().item<float>() > 0;
}

}  // namespace pipewright::examples
