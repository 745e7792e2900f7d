#ifndef PIPEWRIGHT_SCHEDULE_VERIFY_WORK_INDEX_H_
#define PIPEWRIGHT_SCHEDULE_VERIFY_WORK_INDEX_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/stage_microbatch_table.h"

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

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VERIFY_WORK_INDEX_H_
