#ifndef PIPEWRIGHT_SCHEDULE_BOUNDS_KNAPSACK_H_
#define PIPEWRIGHT_SCHEDULE_BOUNDS_KNAPSACK_H_

#include <cstdint>
#include <span>
#include <vector>

#include "pipewright/schedule/problem/problem.h"

namespace pipewright::schedule {

// Something that occupies memory and stands for work, and how often it can occur.
struct MemoryItem {
  Memory size;
  Ticks work;
  int64_t count;
};

// The knapsack problem for some items and every capacity up to a largest one. Immutable.
class Knapsack {
 public:
  // Sizes, works and counts must not be negative. O(items * largest / unit).
  Knapsack(std::span<const MemoryItem> items, Memory largest);

  // At least as much as the work of any selection of items whose sizes sum to at most `capacity`,
  // which is at most `largest`. The largest such work exactly if all sizes are multiples of a unit
  // of which `largest` has at most 4096, so for all memory limits in activations; otherwise with
  // fractions of items allowed, which is more. An item of size 0 is always taken. A negative
  // capacity holds nothing. O(1) if exact, otherwise O(items).
  Ticks most_work(Memory capacity) const;

 private:
  Memory unit_ = 1;
  Ticks free_ = 0;           // work that occupies no memory
  std::vector<Ticks> best_;  // by capacity in units, without free_; empty if there are too many
  std::vector<MemoryItem> sized_;  // the others, those with the most work per size first
};

// For a single capacity.
Ticks most_work(std::span<const MemoryItem> items, Memory capacity);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_BOUNDS_KNAPSACK_H_
