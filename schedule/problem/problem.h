#ifndef PIPEWRIGHT_SCHEDULE_PROBLEM_PROBLEM_H_
#define PIPEWRIGHT_SCHEDULE_PROBLEM_PROBLEM_H_

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/placement.h"
#include "pipewright/schedule/problem/costs.h"

// The problem that `pipewright search` solves, as a value: stages on ranks, a number of
// microbatches, what each action costs, and how much memory each rank has.
//
//   2 ranks with one stage each, 4 microbatches, F 185, I 181, W 93, transfers of 6, memory for 2
//   activations of which I frees one half and W the other:
//
//   const StageWork work = {.forward = 185, .backward_input = 181, .backward_weight = 93,
//                           .output_transfer = 6, .gradient_transfer = 6,
//                           .activation = 2, .weight_input = 1};
//   const Problem problem = {.placement = ir::Placement::loop(2, 2), .num_microbatches = 4,
//                            .stages = {work, work}, .memory_limits = {4, 4}};
//
// The model is that of the zero-bubble papers (arXiv 2401.10241). Every stage runs F, I and W of
// every microbatch: F after F of the previous stage, I after I of the next stage (on the last stage
// after its own F), W after its own I. A rank runs one action at a time; a transfer between two
// ranks delays its receiver and occupies nobody. The cost of a schedule is the longest span of any
// rank: the end of its last action minus the start of its first.
//
// Times and memory are integers, so that sums are exact and a cost that equals a lower bound is
// equal to the bit. make_problem (problem.h) converts from costs in any unit. Plain values; no
// thread rules apply.

namespace pipewright::schedule {

using Ticks = int64_t;   // time; Problem::tick says how long one is
using Memory = int64_t;  // memory; Problem::memory_unit says how much 1 is

inline constexpr Memory kNoLimit = std::numeric_limits<Memory>::max();

// What one stage costs per microbatch.
struct StageWork {
  Ticks forward = 0, backward_input = 0, backward_weight = 0;
  // From the end of F on this stage to the earliest start of F on the next stage, and from the end
  // of I on this stage to the earliest start of I on the previous stage. 0 on the same rank.
  Ticks output_transfer = 0, gradient_transfer = 0;
  // Memory in use from the start of F to the end of I, and from the end of I to the end of W.
  Memory activation = 0, weight_input = 0;
  // In use beside `activation` while I runs: what a stage that recomputes restores of F. The
  // recomputation is part of backward_input; where the gradient comes from another rank, I may
  // start so long before it arrives.
  Memory recomputed = 0;
  Ticks recomputation = 0;  // 0 where the gradient is of the same rank
  // For a stage that offloads: the times of the copies of an activation to the host and back, and
  // what they move, which is in use beside `activation` when it is not on the host.
  Ticks offload = 0, reload = 0;
  Memory offloaded = 0;

  // In use beside `activation` while I runs.
  Memory restored() const { return recomputed + offloaded; }

  friend bool operator==(const StageWork&, const StageWork&) = default;
};

// The stages that do not keep all that their F saves, ascending: some recompute, others offload.
struct Saving {
  std::vector<int> recompute = {}, offload = {};

  friend bool operator==(const Saving&, const Saving&) = default;
};

struct Problem {
  ir::Placement placement;
  int num_microbatches = 0;
  // Into which each microbatch is cut; each then has the place of a microbatch (ir/dependencies.h).
  int slices = 1;
  std::vector<StageWork> stages;      // one entry per stage; with two replicas, per instance
  std::vector<Memory> memory_limits;  // one entry per rank; kNoLimit for no limit
  // Factors on the times of F, I and W of a microbatch, by microbatch; empty for 1.
  std::vector<double> microbatch_scale = {};
  // false: the backward is not split. I stands for B: its time is that of the whole backward, W
  // does not exist, and backward_weight and weight_input are 0.
  bool splits_backward = true;
  // Stages that recompute or offload. Their StageWork says so already: a recomputation is part of
  // backward_input, and `activation` is the checkpoint, or what never leaves the device.
  Saving saving = {};

  // A compound, of F and I or of F and a whole backward, takes hidden(its shorter part) less than
  // both parts: see Costs::overlap.
  double overlap = 0;

  double tick = 1;         // units of time per tick
  double memory_unit = 1;  // bytes, or activations of one stage, per unit of memory

  int num_ranks() const { return placement.num_ranks(); }
  int num_stages() const { return placement.num_stages(); }
  // With two replicas, a search counts each of a stage as a stage of its own, and all of them run
  // as many microbatches.
  int num_instances() const { return placement.num_instances(); }
  int runs_per_instance() const { return num_microbatches / placement.num_replicas(); }
  const StageWork& work(int stage) const { return stages[static_cast<size_t>(stage)]; }
  Memory memory_limit(int rank) const { return memory_limits[static_cast<size_t>(rank)]; }

  // The time of an action of one microbatch: `base` is a time of StageWork. Monotone in `base` and
  // in the microbatch's scale.
  Ticks scaled(Ticks base, int microbatch) const {
    return microbatch_scale.empty()
               ? base
               : std::llround(static_cast<double>(base) *
                              microbatch_scale[static_cast<size_t>(microbatch)]);
  }

  // What compounds hide whose shorter parts take this long together.
  Ticks hidden(Ticks shorter) const {
    if (overlap == 0) return 0;
    // 0.29 * 100 is a little less than 29.
    const double part = overlap * static_cast<double>(shorter);
    return static_cast<Ticks>(std::floor(part * (1 + 1e-12)));
  }

  // The time of a compound whose parts take these times.
  Ticks together(Ticks forward, Ticks backward) const {
    return forward + backward - hidden(forward < backward ? forward : backward);
  }

  // Times in the unit of the costs, and memory in its unit. A tick of 1/1000 divides, which is
  // exact where a product with 0.001 is not.
  double time(Ticks ticks) const { return in_units(ticks, tick); }
  double size(Memory memory) const { return in_units(memory, memory_unit); }

  // The microbatch whose backward is the k-th of a stage. A schedule may run the backwards of whole
  // microbatches in order, and those of the slices of one must be in the opposite order.
  int backward_at(int k) const { return ir::backward_at(k, slices); }

  // What one microbatch leaves on all stages of a rank if none recomputes or offloads: one
  // activation of the rank.
  Memory activation_of(int rank) const {
    Memory sum = 0;
    for (const int stage : placement.stages_of(rank))
      sum += work(stage).activation + work(stage).restored();
    return slices * sum;
  }

  friend bool operator==(const Problem&, const Problem&) = default;

 private:
  static double in_units(int64_t amount, double unit) {
    const auto number = static_cast<double>(amount);
    return unit < 1 ? number / std::round(1 / unit) : number * unit;
  }
};

// Long work (a search, replays with noise) takes a flag that another thread or a signal handler
// sets to stop it early; null if nothing will. Such work returns the best it has, and nothing else
// is ordered by the flag.
inline bool is_cancelled(const std::atomic<bool>* cancel) {
  return cancel != nullptr && cancel->load(std::memory_order_relaxed);
}

// How much memory each rank has for activations. At most one of the two is set; without either
// there is no limit, and the unit of memory is a live activation, from F to the end of B or W.
struct MemoryBudget {
  // Activations: 1 is what one microbatch leaves on all stages of a rank, so the number means the
  // same for every placement. I frees one half of a stage's activation and W the other, as the
  // zero-bubble papers count; with sizes in the costs, I frees down to weight_input_bytes.
  std::optional<PerRank> activations = {};
  // Bytes, in the sizes of the costs: activation_bytes from F to the end of I, weight_input_bytes
  // from there to the end of W. What the rank's stages need beside (Costs::model_bytes), and one
  // receive buffer per input of its stages that comes from another rank, are subtracted.
  std::optional<PerRank> bytes = {};

  bool is_set() const { return activations || bytes; }
  // The one that is set.
  std::optional<PerRank> limit() const { return bytes ? bytes : activations; }
};

// So many times as much memory on every rank.
MemoryBudget scaled(MemoryBudget memory, double factor);

// The budget that is asked for, or else the memory of the ranks that the costs have.
MemoryBudget budget_of(const MemoryBudget& asked, const Costs& costs);

// Adds an error if the budget is a list and does not have one number per rank. Returns whether
// there was none.
bool check_budget(const MemoryBudget& memory, int num_ranks, ir::Diagnostics* diagnostics);

// Limits of ranks whose parameters alone need far more than there is stop here.
inline constexpr Memory kLeastLimit = -(Memory{1} << 61);

// The problem with these costs, which must fit the placement (check_costs). Every rank must have a
// stage. Times and sizes become integers by a power of ten: exactly where their decimals allow it,
// otherwise to about 12 digits, sizes and limits rounded down. Without a limit, stages that
// offload have their copies, and the activations count as live while they are on the host. Linear
// in the stages.
Problem make_problem(const ir::Placement& placement, int num_microbatches, const Costs& costs,
                     const MemoryBudget& memory, bool splits_backward = true);

// A problem in which each stage may recompute (Costs::recompute, checkpoint_bytes) or offload
// (Costs::offload_bytes). All three have the same ticks, unit of memory and limits, so every choice
// of stages is a mix of them.
struct SavingProblem {
  Problem plain;        // no stage does
  Problem recomputing;  // all recompute
  Problem offloading;   // all offload

  // The problem in which these stages do. No stage may be in both lists.
  Problem with(const Saving& saving) const;
};
// Converts like make_problem(). Without activation_bytes, recomputing takes time and saves nothing.
SavingProblem make_saving_problem(const ir::Placement& placement, int num_microbatches,
                                  const Costs& costs, const MemoryBudget& memory,
                                  bool splits_backward = true);
// The costs of such a choice, of costs that know of none.
Costs costs_with(const Saving& saving, const Costs& costs, int num_stages);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_PROBLEM_PROBLEM_H_
