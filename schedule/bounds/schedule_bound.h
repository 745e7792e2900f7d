#ifndef PIPEWRIGHT_SCHEDULE_BOUNDS_SCHEDULE_BOUND_H_
#define PIPEWRIGHT_SCHEDULE_BOUNDS_SCHEDULE_BOUND_H_

#include <string_view>
#include <utility>
#include <vector>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/problem/costs.h"
#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/simulate/report.h"

namespace pipewright::schedule {

class CopyPlan;

// The problem that a schedule solves: its stages, microbatches and costs, and on each rank the
// given memory, or else as many live activations as the schedule has at its peak, each whole from
// its F to the end of its B or W. A stage whose backwards are all whole has no W. The costs must
// fit the schedule (check_costs); `report` must be its report.
Problem problem_of(const ir::Schedule& schedule, const Costs& costs, const Report& report,
                   const MemoryBudget& memory);

// The most memory that a rank of a schedule uses, as the problem counts it, and the first step at
// which it does. One entry per rank. Linear in the number of actions, O(n log n) with copies.
struct MemoryPeak {
  Memory amount = 0;
  int step = 0;
  // How far above the problem's limit it is whenever it has grown, summed up: 0 if it fits.
  Memory excess = 0;
};
// `copies` are those of a schedule that offloads, and `timeline` is when it runs: what is on the
// host follows from both (simulate/memory_model.h). Without them nothing is offloaded, and the
// order of the actions decides.
std::vector<MemoryPeak> memory_peaks(const ir::Schedule& schedule, const Problem& problem,
                                     const CopyPlan* copies = nullptr,
                                     const ir::Timeline* timeline = nullptr);

// The best lower bound on the cost of any order of a schedule's work in the same memory, in the
// unit of the costs (see bounds.h). Zero gap proves the schedule optimal.
struct ScheduleBound {
  double value = 0;
  std::string_view name;  // of the bound: "nested_window"
  int rank = -1;          // see Bound
  int other = -1;
  std::vector<std::pair<std::string_view, double>> terms;  // their sum is the value
  // The memory for which the bound holds: limits by rank, and what a microbatch uses from the start
  // of F to the end of B or I, whatever is offloaded, from there to the end of W, and in addition
  // while B or I runs, by stage.
  std::vector<double> memory_limits, activations, weight_inputs, recomputed;

  double gap(double cost) const { return schedule::gap(cost, value); }
};

// Of problem_of(). Times are rounded there, so a value that differs from the schedule's cost by
// less than a billionth of it is taken for the cost. Of a schedule without backwards, only the work
// is bounded. Linear in the number of actions, and the time of lower_bound().
ScheduleBound bound_of(const ir::Schedule& schedule, const Costs& costs, const Report& report,
                       const MemoryBudget& memory);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_BOUNDS_SCHEDULE_BOUND_H_
