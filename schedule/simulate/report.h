#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_REPORT_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_REPORT_H_

#include <vector>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/graph/peaks.h"
#include "pipewright/schedule/problem/costs.h"
#include "pipewright/schedule/simulate/memory_parts.h"

namespace pipewright::schedule {

// One rank's share of a report. Times are in the unit of the costs.
struct RankReport {
  double start = 0, end = 0;         // first start and last end of its compute actions and of the
                                     // data-parallel actions that take time
  double busy = 0;                   // total duration of its compute actions
  double exposed_communication = 0;  // compute stalled on transfers
  Peak<int> peak_activations;        // live activations, see peak_activations()
  Peak<double> peak_bytes;           // see MemoryModel; 0 if the costs have no sizes
  MemoryParts memory;                // what is in use then

  // The zero-bubble papers' cost of a rank.
  double span() const { return end - start; }
  double idle() const { return ir::without_rounding(span() - busy, span()); }
};

// The figures of a schedule and its timeline.
struct Report {
  double makespan = 0;     // from the first start to the last end
  double cost = 0;         // the longest span of any rank
  double bubble_rate = 0;  // (cost - compute time of the busiest rank) / cost
  std::vector<RankReport> ranks;
};

// The timeline may be predicted or measured; the costs must fit the schedule (see costs.h). A pure
// function. Linear in the number of actions; with sizes, O(n log n) in the actions per rank.
Report report_on(const ir::Schedule& schedule, const Costs& costs, const ir::Timeline& timeline);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_REPORT_H_
