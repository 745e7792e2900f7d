#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_COPIES_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_COPIES_H_

#include <optional>
#include <vector>

#include "pipewright/schedule/problem/costs.h"
#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/solve.h"
#include "pipewright/schedule/search/words.h"

// The search for a problem some of whose stages offload. When their copies run, and so how much
// memory is in use, depends on the times of the actions (simulate/memory_model.h), which the search
// engine does not know while it makes words. So the engine solves the problem without the time of
// copies, where a part that is offloaded is in use only while I runs, with all of the memory, and
// with room for one and for two parts on their way. The simulator, which is what others will see,
// then measures what was found: the best that fits is improved by moves of single steps, each
// measured likewise.
//
// Pure functions; any thread.

namespace pipewright::schedule::search {

// What a schedule costs and needs.
struct Measured {
  Ticks cost = 0, makespan = 0;  // as of Replay
  Ticks busiest = 0;             // how long the busiest rank computes
  std::vector<Memory> peaks;     // per rank
  Memory excess = 0;             // with copies: see MemoryPeak, of all ranks
};

// By a replay, for a problem without stages that offload; or by the simulator, with the copies.
// `costs` are those that the problem was made of, with its stages that recompute and offload
// (costs_with). nullopt for a deadlock.
std::optional<Measured> measure(const Problem& problem, const Words& words);
std::optional<Measured> measure(const Problem& problem, const Costs& costs, const Words& words);

// Like solve_in_phases(), for a problem with stages that offload. nullopt if nothing that was found
// fits the memory.
std::optional<Solution> solve_with_copies(const Problem& problem, const Costs& costs,
                                          const SolveOptions& options);

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_COPIES_H_
