#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_MEMORY_MODEL_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_MEMORY_MODEL_H_

#include <cstddef>
#include <span>
#include <vector>

#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/graph/deadlock.h"
#include "pipewright/schedule/problem/costs.h"
#include "pipewright/schedule/simulate/memory_parts.h"

// Offload of activations, as in PipeOffload (arXiv 2503.01328): on a stage with offload_bytes, this
// part of each activation is copied to the host after F and back before B or I.
//
//   compute   0F0 0F1 0F2 ...          0B0 0B1        rank 0
//   copies        out0 out1 out2  in0  in1            its copy stream; 0B1 waits for in1
//
// Each rank has one copy stream, which runs its copies one after the other, in the order in which
// they are posted. Copies are posted like transfers: when every compute before their place in the
// row has ended. A copy to the host has its place right after F. A copy back has the latest place
// from which it would end in time if the rank ran its computes without a pause and its copies back
// without others between them; but not before the place of the copy to the host, so no copy waits
// for one that is posted later, nor before the backward that needs the copy back before it, so the
// activations of at most two are back. The backward waits for the copy back.
//
// A copy to the host frees memory when it ends, and a copy back takes it when it is posted, or when
// the copy to the host ends if that is later.
//
// Copies take the same time on every rank and for every microbatch: rank_scale and microbatch_scale
// do not apply to them.

namespace pipewright::schedule {

// A copy of one microbatch's activation of one stage.
struct Copy {
  bool is_reload = false;  // back from the host; otherwise to it
  int stage = 0, microbatch = 0;
  size_t posted_before = 0;  // step of the compute that it is posted just before
  size_t step = 0;           // of the F before a copy to the host, of the B or I after one back
  size_t trip = 0;           // its activation: that of the other copy, too
  double duration = 0;
  double posted = 0;       // the time; 0 until it is known
  ir::Interval time = {};  // when it runs, likewise
  double takes = 0;        // of a copy back: when it takes memory, likewise
};

// The copies of one rank, in the order of its copy stream.
struct RankCopies {
  std::vector<Copy> copies;
  std::vector<size_t> reload_of;  // by step: the copy back that it waits for, or copies.size()
};

// The copies of all ranks, without their times. Immutable; safe to use from any thread. Empty if no
// stage has offload_bytes; else O(n log n) in the number of actions per rank.
class CopyPlan {
 public:
  CopyPlan() = default;
  CopyPlan(const ir::Schedule& schedule, const Costs& costs);

  bool is_empty() const { return ranks_.empty(); }
  // Requires that the plan is not empty.
  const RankCopies& of(size_t rank) const { return ranks_[rank]; }

 private:
  std::vector<RankCopies> ranks_;
};

// The copy stream of one rank, to which copies are posted as its computes run:
//
//   CopyStream stream(plan.of(rank));
//   for each compute of the rank's row: start = max(start, stream.post(step, end of the last one))
class CopyStream {
 public:
  // `plan` may not change.
  explicit CopyStream(const RankCopies& plan)
      : reload_of_(plan.reload_of), copies_(plan.copies), left_(plan.copies.size()) {}

  // Posts the copies whose place is before the compute at `step`, at the time when the compute
  // before it has ended. Must be called for each compute of the row in order. Returns the end of
  // the copy back that the compute waits for, or 0.
  double post(size_t step, double time);
  // Those that have been posted, with their times.
  std::span<const Copy> posted() const { return std::span(copies_).first(next_); }

 private:
  std::span<const size_t> reload_of_;
  std::vector<Copy> copies_;
  std::vector<double> left_;  // by trip: the end of the copy to the host
  size_t next_ = 0;
  double end_ = 0;  // of the last copy
};

// The copies of a rank in a timeline that simulate() has computed, in the order of its stream, with
// their times: those that have been posted when the first `steps` steps of the row have run. Empty
// if the plan is. Linear in the rank's row.
std::vector<Copy> copies_in(const ir::Schedule& schedule, const CopyPlan& plan,
                            const ir::Timeline& timeline, size_t rank, size_t steps);

// Backwards in time: the latest that copies may be posted without making computes late. To be asked
// for each compute of the rank's row, the last one first.
class LatestPosts {
 public:
  // `plan` may not change.
  explicit LatestPosts(const RankCopies& plan);

  // When the compute before the one at `step`, which may start at `latest_start`, must have ended
  // for its copies; infinity if none is posted then.
  double before(size_t step, double latest_start);

 private:
  const RankCopies& plan_;
  std::vector<double> ends_;  // of the copies that are left: the latest
  double start_;              // of the copy after those: the latest
};

// The memory in use on a rank just after an action has started or ended.
struct MemorySample {
  double time;
  int step;         // of the action
  int activations;  // live activations, each of one microbatch of one stage
  MemoryParts parts = {};
  double bytes = 0;  // the sum of the parts; 0 without sizes
};

// The memory of each rank over time, from the sizes in the costs:
//
//   activation    from F to the end of B; if split, activation_bytes from F to the end of I, then
//                 weight_input_bytes to the end of W
//   offloaded     the part of an activation that is not in use from the end of its copy to the host
//                 until its copy back takes memory
//   recomputed    of a stage that recomputes, while B or I runs
//   parameters    throughout if the program has no UNSHARD, and shard_bytes of shards
//   unsharded     parameters from UNSHARD to RESHARD
//   gradients     from a stage's first B or W to its REDUCE_GRAD
//   optimizer     throughout
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
  bool has_receives_;                         // false for an order, which has no receive buffers
  std::vector<MemoryParts> held_throughout_;  // by rank
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_MEMORY_MODEL_H_
