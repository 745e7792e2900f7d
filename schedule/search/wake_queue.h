#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_WAKE_QUEUE_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_WAKE_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "pipewright/schedule/problem/problem.h"

namespace pipewright::schedule::search {

// The next time at which each rank has to decide, as a tournament tree: every node has the earliest
// (time, rank) below it. One entry per rank, so it never grows; an update takes log2(ranks) steps.
// Times must be below 2^48, ranks below 2^14.
class WakeQueue {
 public:
  static constexpr Ticks kAsleep = std::numeric_limits<Ticks>::max();

  explicit WakeQueue(int num_ranks) {
    while ((size_t{1} << bits_) < static_cast<size_t>(num_ranks)) ++bits_;
    keys_.resize(size_t{2} << bits_);
    clear();
  }

  // Puts all ranks to sleep.
  void clear() { std::ranges::fill(keys_, kAsleep); }

  bool empty() const { return keys_[1] == kAsleep; }
  Ticks time() const { return keys_[1] >> bits_; }
  int rank() const { return static_cast<int>(keys_[1] & ((Ticks{1} << bits_) - 1)); }

  void set(int rank, Ticks time) {
    replace(rank, time == kAsleep ? kAsleep : (time << bits_ | rank));
  }
  // Wakes a sleeping rank no later than at `time`.
  void wake_by(int rank, Ticks time) {
    const Ticks key = time << bits_ | rank;
    if (key < keys_[(size_t{1} << bits_) + static_cast<size_t>(rank)]) replace(rank, key);
  }

 private:
  void replace(int rank, Ticks key) {
    size_t at = (size_t{1} << bits_) + static_cast<size_t>(rank);
    keys_[at] = key;
    while (at > 1) {
      key = std::min(key, keys_[at ^ 1]);
      at /= 2;
      if (keys_[at] == key) return;
      keys_[at] = key;
    }
  }

  unsigned bits_ = 0;
  std::vector<Ticks> keys_;  // node n has the children 2n and 2n + 1; the ranks are the leaves
};

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_WAKE_QUEUE_H_
