#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_MEMORY_MODEL_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_MEMORY_MODEL_H_

#include <cstddef>
#include <vector>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/stage_dependencies.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/graph/deadlock.h"
#include "pipewright/schedule/problem/costs.h"
#include "pipewright/schedule/simulate/copy_plan.h"

namespace pipewright::schedule {

// The memory in use on a rank just after an action has started or ended.
struct MemorySample {
  double time;
  int step;         // of the action
  int activations;  // live activations, each of one microbatch of one stage
  double bytes;  // activations, receive buffers, unsharded parameters, gradients; 0 without sizes
};

// The memory of each rank over time, from the sizes in the costs:
//
//   activation    from F to the end of B; if split, activation_bytes from F to the end of I, then
//                 weight_input_bytes to the end of W
//   offloaded     the part of an activation that is not in use from the end of its copy to the host
//                 to the start of its copy back (copy_plan.h)
//   recomputed    of a stage that recomputes, while B or I runs
//   parameters    from UNSHARD to RESHARD; throughout if the program has no UNSHARD
//   gradients     from a stage's first B or W to its REDUCE_GRAD
//   receive       from RECV to the end of the compute that uses it
//
// Immutable after construction; safe to use from any thread. What it is made of must outlive it.
class MemoryModel {
 public:
  // `standstill`, of a schedule that cannot run to its end, names the actions that never run.
  MemoryModel(const ir::Schedule& schedule, const Costs& costs,
              const Standstill* standstill = nullptr);

  // Samples of one rank by time: one at the start and one at the end of each action, and one for
  // each copy, at the step of its F or backward. Of what happens at one time, copies to the host
  // count first, then actions in the order of the row, then copies back. Inside a compound, F
  // counts before B. O(n log n) in the rank's actions.
  std::vector<MemorySample> along(const ir::Timeline& timeline, size_t rank) const;

 private:
  const ir::Schedule& schedule_;
  const Costs& costs_;
  const Standstill* standstill_;
  ir::StageDependencies dependencies_;
  CopyPlan copies_;
  bool has_backward_;
  bool has_receives_;                    // false for an order, which has no receive buffers
  std::vector<double> held_throughout_;  // by rank: parameters that are never unsharded
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_MEMORY_MODEL_H_
