#ifndef PIPEWRIGHT_SCHEDULE_PROBLEM_MAKE_PROBLEM_H_
#define PIPEWRIGHT_SCHEDULE_PROBLEM_MAKE_PROBLEM_H_

#include <optional>
#include <span>

#include "pipewright/ir/placement.h"
#include "pipewright/schedule/problem/costs.h"
#include "pipewright/schedule/problem/problem.h"

namespace pipewright::schedule {

// How much memory each rank has for activations. At most one of the two is set; without either
// there is no limit, and the unit of memory is a live activation, from F to the end of B or W.
struct MemoryBudget {
  // Activations: 1 is what one microbatch leaves on all stages of a rank, so the number means the
  // same for every placement. I frees one half of a stage's activation and W the other, as the
  // zero-bubble papers count; with sizes in the costs, I frees down to weight_input_bytes.
  std::optional<double> activations = {};
  // Bytes, in the sizes of the costs: activation_bytes from F to the end of I, weight_input_bytes
  // from there to the end of W. The rank's parameters and gradients, and one receive buffer per
  // input of its stages that comes from another rank, are subtracted.
  std::optional<double> bytes = {};

  bool is_set() const { return activations || bytes; }
  // The one that is set.
  std::optional<double> limit() const { return bytes ? bytes : activations; }
};

// Limits of ranks whose parameters alone need far more than there is stop here.
inline constexpr Memory kLeastLimit = -(Memory{1} << 61);

// The problem with these costs, which must fit the placement (check_costs). Every rank must have a
// stage. Times and sizes become integers by a power of ten: exactly where their decimals allow it,
// otherwise to about 12 digits, sizes and limits rounded down. Without a limit, stages that
// offload have their copies, and the activations count as live while they are on the host. Linear
// in the stages.
Problem make_problem(const ir::Placement& placement, int num_microbatches, const Costs& costs,
                     const MemoryBudget& memory, bool splits_backward = true);

// A problem in which each stage may recompute (Costs::recompute, checkpoint_bytes). Both have the
// same ticks, unit of memory and limits, so every choice of stages is a mix of the two.
struct RecomputeProblem {
  Problem plain;        // no stage recomputes
  Problem recomputing;  // all do

  // The problem in which these stages recompute; ascending.
  Problem with(std::span<const int> stages) const;
};
// As make_problem(). Without activation_bytes, recomputing takes time and saves nothing.
RecomputeProblem make_recompute_problem(const ir::Placement& placement, int num_microbatches,
                                        const Costs& costs, const MemoryBudget& memory,
                                        bool splits_backward = true);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_PROBLEM_MAKE_PROBLEM_H_
