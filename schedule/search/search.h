#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_SEARCH_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_SEARCH_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/problem/costs.h"
#include "pipewright/schedule/problem/problem.h"

// The search's front door: from costs, a placement and a memory limit to a compute order, its cost,
// and a lower bound on the cost of every other one.
//
//   SearchRequest request = {.placement = ir::Placement::v(8, 16), .num_microbatches = 24,
//                            .costs = costs, .memory = {.activations = 5}};
//   if (!shortage_of(problem_of(request))) {
//     const SearchResult found = search_schedule(request);
//     std::cout << found.cost << ", at most " << 100 * found.gap() << "% above the optimum";
//   }
//
// The catalogue's schedules are tried first, so the result is never worse than one of them that
// fits (but for V-Adaptive without SearchRequest::memory_plans). The costs must fit the placement
// and the microbatches (check_costs). Prints nothing, does no I/O; safe to call from any thread.
// The result depends on the request alone, not on the number of threads or the machine, unless it
// is cancelled.

namespace pipewright::schedule::search {

// Takes some seconds on one core.
inline constexpr int64_t kDefaultEvaluations = 200'000'000;

struct SearchProgress {
  double cost;   // of the best schedule so far
  double bound;  // no schedule costs less
  int64_t evaluations;
  // Of these schedules: fewer than asked for while the search looks for one to repeat.
  int num_microbatches;
};

// Which makespan under noise counts.
enum class RobustBy { kMean, kPercentile95 };

struct SearchRequest {
  // Two replicas run as many microbatches each.
  ir::Placement placement;
  int num_microbatches = 0;
  Costs costs = {};
  MemoryBudget memory = {};
  // false: every backward is a whole B. true: all are I and W, or all are B where that is better:
  // it may be if I adds memory, because B has that of F until it ends.
  bool splits_backward = true;
  // Let the search choose the stages that recompute (see Costs::recompute and checkpoint_bytes) or
  // offload (see Costs::offload_bytes and simulate/memory_model.h). The budget is that of each of:
  // no stage, all stages that can in one way, and all other choices together. Not with two
  // replicas.
  bool may_recompute = false, may_offload = false;

  int64_t evaluations = kDefaultEvaluations;  // budget, in evaluated actions: about 30 ns each
  int threads = 1;
  uint64_t seed = 1;
  // Orders to try beside the catalogue, of the same placement and microbatches; those that deadlock
  // or do not fit are ignored.
  std::vector<ir::ComputeOrder> known = {};
  // false: a quick search, without V-Adaptive, whose plans take seconds on more than 8 ranks. Where
  // stages may recompute or offload, only the choices that are searched on their own have it.
  bool memory_plans = true;
  // Above 0: of the good schedules found, take the one with the least makespan, on average or at
  // the 95th percentile, when the time of each action varies by log-normal noise of this standard
  // deviation.
  double noise = 0;
  RobustBy robust_by = RobustBy::kMean;

  std::function<void(const SearchProgress&)> on_progress = {};  // may be empty
  // Set by another thread or a signal handler to stop early; may be null.
  const std::atomic<bool>* cancel = nullptr;
};

// How a schedule's makespan changes when times are not as planned, relative to its makespan: 0.02
// for 2% more.
struct Robustness {
  double mean = 0, percentile_95 = 0;  // under noise
  double slow_rank = 0;                // the worst rank takes 5% longer
  double slow_links = 0;               // transfers take twice as long
};

struct SearchResult {
  Problem problem;  // that the order solves: with split backwards or with whole ones
  ir::ComputeOrder order;
  std::string found_by;  // name of the catalogue's schedule that it is, or "search"
  double cost = 0;       // the longest span of any rank
  double makespan = 0;
  double bubble_rate = 0;  // (cost - work of the busiest rank) / cost
  Ticks cost_in_ticks = 0;
  Bound bound;  // in ticks; of every choice of stages that recompute or offload, if there is one
  std::vector<Memory> peak_memory;  // per rank, in the problem's unit
  int64_t evaluations = 0;
  bool is_cancelled = false;
  // If noise was given and the search not cancelled.
  std::optional<Robustness> robustness;

  // How far the cost is above the bound: 0.1 for 10%.
  double gap() const {
    return schedule::gap(static_cast<double>(cost_in_ticks), static_cast<double>(bound.value));
  }
};

// With split backwards if the request allows them and their memory is there. If stages may
// recompute or offload, with the memory of the choice that takes least: see undecided() in
// saving.h.
Problem problem_of(const SearchRequest& request);

// The rank whose limit is the farthest below what any schedule needs.
struct Shortage {
  int rank;
  Memory limit, least;
};
std::optional<Shortage> shortage_of(const Problem& problem);

// Nothing that a search has found fits the memory. How much a schedule needs whose stages offload
// depends on its times, so no shortage says it before.
class NothingFits : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Requires that no rank is short of memory. Throws NothingFits only if stages may offload.
SearchResult search_schedule(const SearchRequest& request);

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_SEARCH_H_
