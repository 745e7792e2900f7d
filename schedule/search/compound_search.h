#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_COMPOUND_SEARCH_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_COMPOUND_SEARCH_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/compound_rows.h"
#include "pipewright/schedule/search/solve.h"

// The search for compounds that pay, where the problem has an overlap: from schedules with few
// compounds or none to better ones with more. The result depends on the arguments alone, not on the
// number of threads or the machine, unless it is cancelled.

namespace pipewright::schedule::search {

struct CompoundStart {
  std::string name;  // "" for a schedule that the search has found
  CompoundRows rows;
};

struct CompoundOptions {
  Ticks bound = 0;          // stop at this cost; a lower bound
  int64_t evaluations = 0;  // budget, in evaluated steps
  uint64_t seed = 1;
  std::function<void(const Progress&)> on_progress = {};  // may be empty
  const std::atomic<bool>* cancel = nullptr;              // may be null
};

struct CompoundFound {
  Ticks cost = 0;
  std::string name;  // of the start that it is, or ""
  CompoundRows rows;
};

struct CompoundSolution {
  // Good schedules of different costs, cheapest first; the first one is never worse than a start.
  std::vector<CompoundFound> found;
  int64_t evaluations = 0;
};

// At least one start must run to its end and fit the memory limits; others that do not are ignored.
// Throws whatever on_progress throws.
CompoundSolution find_compounds(const Problem& problem, std::vector<CompoundStart> starts,
                                const CompoundOptions& options);

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_COMPOUND_SEARCH_H_
