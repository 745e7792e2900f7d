#ifndef PIPEWRIGHT_SCHEDULE_BOUNDS_KNAPSACK_H_
#define PIPEWRIGHT_SCHEDULE_BOUNDS_KNAPSACK_H_

#include <cstdint>
#include <span>

#include "pipewright/schedule/search/problem.h"

namespace pipewright::schedule {

// Something that occupies memory and stands for work, and how often it can occur.
struct MemoryItem {
  search::Memory size;
  search::Ticks work;
  int64_t count;
};

// At least as much as the work of any selection of items whose sizes sum to at most `capacity`:
// the knapsack problem. The largest such work exactly if all sizes are multiples of a unit of which
// the capacity has at most 4096, so for all memory limits in activations; otherwise with fractions
// of items allowed, which is more. Sizes, works and counts must not be negative; an item of size 0
// is always taken. A negative capacity holds nothing. O(items * capacity / unit).
search::Ticks most_work(std::span<const MemoryItem> items, search::Memory capacity);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_BOUNDS_KNAPSACK_H_
