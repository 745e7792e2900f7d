#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_REPORT_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_REPORT_H_

#include <optional>
#include <vector>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/stage_dependencies.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/simulate/costs.h"

// What a timeline says of a schedule, whether it was predicted or measured.

namespace pipewright::schedule {

// The most of something along a row, and the step that reaches it first.
struct PeakBytes {
  double bytes = 0;
  std::optional<int> step;
};

// What a rank holds once the action at `step` has begun, or has ended.
struct MemorySample {
  double time;
  int step;
  int activations;  // microbatches of a stage: F starts one, B or W ends it
  double bytes;  // activations, receive buffers, unsharded parameters, gradients; 0 without sizes
};

// A rank, in the unit of the costs.
struct RankReport {
  double start = 0, end = 0;         // of its computes and data-parallel actions
  double busy = 0;                   // computes
  double exposed_communication = 0;  // its computes waited while their inputs were on the way
  int peak_activations = 0;
  std::optional<int> peak_activations_step;
  PeakBytes peak_bytes;

  // The zero-bubble papers' cost of a rank.
  double span() const { return end - start; }
  double idle() const { return span() - busy; }
};

// What no order of the same work could be below; the largest counts.
struct LowerBounds {
  double busiest_rank = 0;    // its work
  double one_microbatch = 0;  // its way forward and back, transfers included
  // A rank has no backward to run before its first microbatch comes back, and its activations allow
  // no more forwards than it holds at its peak (arXiv 2401.10241, appendix B).
  double warm_up = 0;
  double largest() const;
};

struct Report {
  double makespan = 0;     // from 0 to the last end
  double cost = 0;         // the longest span of a rank
  double bubble_rate = 0;  // (cost - work of the busiest rank) / cost
  std::vector<RankReport> ranks;
  LowerBounds bounds;  // of cost

  // How far the cost is above the largest bound: 0.1 for a tenth.
  double gap() const { return bounds.largest() > 0 ? cost / bounds.largest() - 1 : 0; }
};

Report report_on(const ir::Schedule& schedule, const Costs& costs, const ir::Timeline& timeline);

// What ranks hold over time. Schedule and costs must outlive it.
class MemoryModel {
 public:
  MemoryModel(const ir::Schedule& schedule, const Costs& costs);

  // Along the row of a rank, in the order of time. Inside a compound F counts before B. O(n log n)
  // in the rank's actions.
  std::vector<MemorySample> along(const ir::Timeline& timeline, size_t rank) const;

 private:
  const ir::Schedule& schedule_;
  const Costs& costs_;
  ir::StageDependencies dependencies_;
  bool has_backward_;
  bool receives_;                        // else what is received is not held
  std::vector<double> held_throughout_;  // by rank: parameters that are never gathered
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_REPORT_H_
