#ifndef PIPEWRIGHT_SCHEDULE_BOUNDS_REST_H_
#define PIPEWRIGHT_SCHEDULE_BOUNDS_REST_H_

#include <cstdint>
#include <vector>

#include "pipewright/schedule/bounds/knapsack.h"
#include "pipewright/schedule/problem/problem.h"

namespace pipewright::schedule {

// Is and Ws that are left to do, and their memory.
struct UnfinishedItem {
  Memory size;
  Ticks inputs, weights;
  int64_t count;
};

// The idle time after the last F of a rank, less the W work that is left when its last I ends, is
// at least
//
//   max(0, chain - I work) - W work
//
// of what is left to do when the last F ends: nested_window_bound() says why. The least value for
// anything that fits in memory is a knapsack problem of two values. This is one of a single value
// that is at most as large, for any share from 0 to kWholeShare:
//
//   share / kWholeShare (chain - I work) - W work
constexpr Ticks kWholeShare = 1024;

class RestAtShare {
 public:
  // Of items that take at most `largest`.
  RestAtShare(const std::vector<UnfinishedItem>& items, Memory largest, Ticks share);

  // kWholeShare times the least value where this I and W work is left, and that of items within a
  // capacity of at most `largest`.
  Ticks scaled(Ticks chain, Ticks inputs, Ticks weights, Memory capacity) const;

 private:
  Ticks share_;
  Knapsack items_;
};

// Divided by kWholeShare, and rounded up, as costs are whole numbers.
Ticks unscaled(Ticks scaled);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_BOUNDS_REST_H_
