#ifndef PIPEWRIGHT_SCHEDULE_PROBLEM_CANCEL_H_
#define PIPEWRIGHT_SCHEDULE_PROBLEM_CANCEL_H_

#include <atomic>

namespace pipewright::schedule {

// Long work (a search, replays with noise) takes a flag that another thread or a signal handler
// sets to stop it early; null if nothing will. Such work returns the best it has, and nothing else
// is ordered by the flag.
inline bool is_cancelled(const std::atomic<bool>* cancel) {
  return cancel != nullptr && cancel->load(std::memory_order_relaxed);
}

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_PROBLEM_CANCEL_H_
