#ifndef PIPEWRIGHT_SCHEDULE_BOUNDS_RANK_MEMORY_H_
#define PIPEWRIGHT_SCHEDULE_BOUNDS_RANK_MEMORY_H_

#include <cstdint>
#include <vector>

#include "pipewright/schedule/bounds/chain.h"
#include "pipewright/schedule/bounds/knapsack.h"
#include "pipewright/schedule/bounds/rest.h"
#include "pipewright/schedule/problem/problem.h"

// What the memory of one rank can hold, as items of knapsack problems. bounds.h has the notation.
//
// A microbatch goes up through the stages of a rank and comes back down. Its Fs on the rank are
// those of the stages up to one, and so are its Is that are left. Hence items that are sums. Times
// are those of the slowest microbatch. Plain values.

namespace pipewright::schedule {

struct RankMemory {
  RankMemory(const Problem& problem, const Chain& slow, const std::vector<int>& stages);

  int64_t microbatches;
  Memory limit = 0;  // L, at most what all microbatches take
  Memory whole = 0;  // of one microbatch between its last F and its first I: all a_s
  Ticks forwards = 0, inputs = 0, weights = 0;  // of one microbatch
  bool all_fit = false;                         // all Fs of the rank fit in memory at once

  std::vector<MemoryItem> single_forwards;  // of any stages
  std::vector<MemoryItem> held;             // Ws, after their I
  std::vector<MemoryItem> started;          // microbatches that have run no I
  std::vector<UnfinishedItem> unfinished;   // microbatches that have run all Fs
  // Those that have not reached F_xl, and those that have ended I_xl.
  std::vector<MemoryItem> partly_started;
  std::vector<UnfinishedItem> partly_finished;

  // How many microbatches can be between their last F and their first I at once.
  int64_t fit() const { return whole == 0 ? microbatches : limit / whole; }
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_BOUNDS_RANK_MEMORY_H_
