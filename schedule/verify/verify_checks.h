#ifndef PIPEWRIGHT_SCHEDULE_VERIFY_VERIFY_CHECKS_H_
#define PIPEWRIGHT_SCHEDULE_VERIFY_VERIFY_CHECKS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/tables.h"
#include "pipewright/schedule/graph/channel_graph.h"
#include "pipewright/schedule/graph/deadlock.h"
#include "pipewright/schedule/verify/verify.h"

// The checks of the verifier, one file each; verify.cc runs them in order. Each adds errors to
// `diagnostics`.

namespace pipewright::schedule {

// The step of each action by kind, stage and microbatch: an index into the row of the stage's rank.
// Built once, together with the check of completeness; later checks look actions up instead of
// searching. Immutable after construction.
class WorkIndex {
 public:
  // Indexes a schedule whose actions are on the ranks of their stages and inside its shape. Adds an
  // error for each action that appears twice, and for each (stage, microbatch) that does not run
  // exactly once forward and, if the schedule has a backward, exactly once backward: as B, or as I
  // and W. Returns nullopt if there are errors.
  static std::optional<WorkIndex> build(const ir::Schedule& schedule, ir::Diagnostics* diagnostics);

  // The step of an F, B, I, W, SEND or RECV; nullopt if the schedule lacks it. A query for B finds
  // an I if there is no B, and vice versa.
  std::optional<int> step_of(ir::ActionKind kind, int stage, int microbatch) const {
    const Cell& steps = cells_.at(stage, microbatch);
    uint32_t step = steps[slot_of(kind)];
    if (step == kAbsent && ir::gives_input_gradient(kind))
      step = std::min(steps[kBackwardSlot], steps[kInputSlot]);
    return step == kAbsent ? std::nullopt : std::optional(static_cast<int>(step));
  }

 private:
  static constexpr uint32_t kAbsent = UINT32_MAX;
  // The indexed kinds, in the order of a cell.
  static constexpr ir::ActionKind kSlots[] = {
      ir::ActionKind::kForward,        ir::ActionKind::kBackward, ir::ActionKind::kBackwardInput,
      ir::ActionKind::kBackwardWeight, ir::ActionKind::kSendF,    ir::ActionKind::kRecvF,
      ir::ActionKind::kSendB,          ir::ActionKind::kRecvB};
  static constexpr size_t kForwardSlot = 0, kBackwardSlot = 1, kInputSlot = 2, kWeightSlot = 3,
                          kNoSlot = std::size(kSlots);

  // The slot of a kind in a cell; kNoSlot for kinds that are not indexed.
  static constexpr size_t slot_of(ir::ActionKind kind) {
    constexpr auto kSlotOf = [] {
      std::array<uint8_t, std::size(ir::kActionKinds) + 1> slots{};
      slots.fill(kNoSlot);
      for (size_t slot = 0; slot < std::size(kSlots); ++slot)
        slots[static_cast<size_t>(kSlots[slot])] = static_cast<uint8_t>(slot);
      return slots;
    }();
    return kSlotOf[static_cast<size_t>(kind)];
  }
  using Cell = std::array<uint32_t, std::size(kSlots)>;

  void check_complete(const ir::Schedule& schedule, ir::Diagnostics* diagnostics) const;
  void check_whole(int stage, int microbatch, int rank, ir::Diagnostics* diagnostics) const;

  bool has_backward_ = false;
  ir::StageMicrobatchTable<Cell> cells_;
};

// Whether a schedule has no error that WorkIndex::build() and check_local_order() find, or, for a
// program whose transfers match, check_data_flow(). Much faster than those, which find and word the
// errors.
bool is_complete_in_order(const ir::Schedule& schedule, ir::Level level);

// Whether a program has no error under ir::ChannelModel::kEdge, with any capacity, except those
// that check_data_parallel() finds. Also false if the program has 2^30 actions or more.
// `kinds`, here and below, are those in the program.
bool runs_on_edges(const ir::Program& program, ir::KindSet kinds);

// Inside each rank of an order: the inputs of an action that its own rank computes are computed
// before it.
void check_local_order(const ir::ComputeOrder& order, const WorkIndex& index,
                       ir::Diagnostics* diagnostics);

// The help for an order that passed check_local_order, but cannot run: an action whose move makes
// it run, or an empty text if none of the first few actions of the cycle that check_can_run()
// reports does.
std::string reorder_help(const ir::ComputeOrder& order, std::span<const Wait> cycle);

// Inside each rank of a program: as above; also, each SEND follows the compute whose result it
// sends, and each RECV precedes the compute that uses it. Unless `transfers_match`, also that SENDs
// and RECVs match one to one.
void check_data_flow(const ir::Program& program, const WorkIndex& index, bool transfers_match,
                     ir::Diagnostics* diagnostics);

// Residency: UNSHARD and RESHARD, if the program has any. Then reduction: REDUCE_GRAD, if the
// program has any.
void check_data_parallel(const ir::Program& program, ir::KindSet kinds, bool weight_free_w,
                         ir::Diagnostics* diagnostics);

// WAITs: each is after the SEND or REDUCE_GRAD that it is for, and each of those has one, if the
// program has WAITs of its kind. Returns whether it has any WAITs. `sends_are_checked`: those of
// SENDs are known to be right.
bool check_waits(const ir::Program& program, ir::KindSet kinds, bool sends_are_checked,
                 ir::Diagnostics* diagnostics);

// Swaps, for a program that passed check_data_flow: SENDs that do not meet their own RECVs.
void check_pairing(const ir::Program& program, const ChannelGraph& graph,
                   ir::Diagnostics* diagnostics);

// Deadlocks, for a program that passed check_data_flow. `graph` is that of `options`.
void check_deadlock(const ir::Program& program, const VerifyOptions& options,
                    const ChannelGraph& graph, ir::Diagnostics* diagnostics);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VERIFY_VERIFY_CHECKS_H_
