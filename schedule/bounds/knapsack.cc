#include "pipewright/schedule/bounds/knapsack.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

namespace pipewright::schedule {
namespace {

constexpr Memory kLargestTable = 4096;

// best[c] is the most work within c units; an item that can fill the table is added by one
// ascending pass, another one by a descending pass for 1, 2, 4, ... copies of it.
std::vector<Ticks> exact(std::span<const MemoryItem> items, Memory capacity, Memory unit) {
  std::vector<Ticks> best(static_cast<size_t>(capacity / unit) + 1);
  for (const MemoryItem& item : items) {
    const auto size = static_cast<size_t>(item.size / unit);
    const auto fit = static_cast<int64_t>((best.size() - 1) / size);
    if (item.count >= fit) {
      for (size_t used = size; used < best.size(); ++used)
        best[used] = std::max(best[used], best[used - size] + item.work);
      continue;
    }
    for (int64_t left = item.count, copies = 1; left > 0; left -= copies, copies *= 2) {
      copies = std::min(copies, left);
      const size_t step = size * static_cast<size_t>(copies);
      for (size_t used = best.size(); used-- > step;)
        best[used] = std::max(best[used], best[used - step] + copies * item.work);
    }
  }
  return best;
}

double density(const MemoryItem& item) {
  return static_cast<double>(item.work) / static_cast<double>(item.size);
}

// Takes the items in this order, and a fraction of the first of which not all fit.
Ticks with_fractions(std::span<const MemoryItem> items, Memory capacity) {
  const Memory empty = capacity;
  Ticks work = 0;
  for (const MemoryItem& item : items) {
    if (item.size > empty) continue;
    const int64_t whole = std::min(item.count, capacity / item.size);
    work += whole * item.work;
    capacity -= whole * item.size;
    if (whole < item.count)
      return work + static_cast<Ticks>(std::ceil(density(item) * static_cast<double>(capacity)));
  }
  return work;
}

}  // namespace

Knapsack::Knapsack(std::span<const MemoryItem> items, Memory largest) {
  Memory unit = 0;
  for (const MemoryItem& item : items) {
    if (item.size == 0) {
      free_ += item.count * item.work;
    } else if (item.count > 0 && item.size <= largest) {
      sized_.push_back(item);
      unit = std::gcd(unit, item.size);
    }
  }
  if (sized_.empty()) return;
  unit_ = unit;
  if (largest / unit <= kLargestTable) {
    best_ = exact(sized_, largest, unit);
  } else {
    std::ranges::sort(sized_, std::greater(), density);
  }
}

Ticks Knapsack::most_work(Memory capacity) const {
  if (capacity < 0 || sized_.empty()) return free_;
  if (best_.empty()) return free_ + with_fractions(sized_, capacity);
  return free_ + best_[static_cast<size_t>(capacity / unit_)];
}

Ticks most_work(std::span<const MemoryItem> items, Memory capacity) {
  return Knapsack(items, capacity).most_work(capacity);
}

}  // namespace pipewright::schedule
