#ifndef PIPEWRIGHT_COMMS_POLL_H_
#define PIPEWRIGHT_COMMS_POLL_H_

#include <algorithm>
#include <chrono>
#include <thread>

namespace pipewright::comms {

// Calls `done` until it returns true, at most for `limit`; returns whether it did. Pauses are a
// fraction of the time waited so far, 1 / `patience`, and at most 20 ms: a wait of any length costs
// few calls and ends at most that fraction late. In the first 50 us it yields instead, because a
// thread that sleeps, however briefly, wakes later than that. For keys of a TCPStore, whose own
// wait() cannot be interrupted and prints two warnings when its time is up.
template <typename Done>
bool poll(std::chrono::milliseconds limit, int patience, const Done& done) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  while (!done()) {
    const Clock::duration waited = Clock::now() - start;
    if (waited >= limit) return false;
    if (waited < std::chrono::microseconds(50)) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(
        std::min<Clock::duration>(waited / patience, std::chrono::milliseconds(20)));
  }
  return true;
}

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_POLL_H_
