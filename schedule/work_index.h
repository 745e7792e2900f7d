#ifndef PIPEWRIGHT_SCHEDULE_WORK_INDEX_H_
#define PIPEWRIGHT_SCHEDULE_WORK_INDEX_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "ir/diagnostic.h"
#include "ir/schedule.h"

namespace pipewright::schedule {

// Where each action of a stage and microbatch stands: its step in the row of the stage's rank.
// Built once, with the errors of completeness on the way; the checks that follow ask it instead of
// searching. Not changed afterwards.
class WorkIndex {
 public:
  // Goes through a schedule whose actions are on the ranks of their stages and inside its shape.
  // Adds an error for each action that stands twice, for each (stage, microbatch) that is not run
  // exactly once forward and, unless no backward stands anywhere, exactly once backward, as B or as
  // I and W.
  static std::optional<WorkIndex> build(const ir::Schedule& schedule, ir::Diagnostics* diagnostics);

  // A schedule without any B, I or W.
  bool forward_only() const { return forward_only_; }

  // The step of the F, B, I, W, SEND or RECV of this kind; none if there is none. B and I count as
  // one.
  std::optional<int> step_of(ir::ActionKind kind, int stage, int microbatch) const {
    const uint32_t step = cell(stage, microbatch)[slot_of(kind)];
    return step == kAbsent ? std::nullopt : std::optional(static_cast<int>(step));
  }

 private:
  static constexpr uint32_t kAbsent = UINT32_MAX;
  static constexpr size_t kSlots = 7;
  static constexpr size_t kForwardSlot = 0, kBackwardSlot = 1, kWeightSlot = 2, kNoSlot = kSlots;

  // The slot of a kind in a cell; kNoSlot for those that the index does not hold.
  static constexpr size_t slot_of(ir::ActionKind kind) {
    constexpr std::array<uint8_t, 13> kSlotOf = [] {
      std::array<uint8_t, 13> slots{};
      slots.fill(kNoSlot);
      uint8_t next = 0;
      using K = ir::ActionKind;
      for (const K one : {K::kForward, K::kBackward, K::kBackwardWeight, K::kSendF, K::kRecvF,
                          K::kSendB, K::kRecvB}) {
        slots[static_cast<size_t>(one)] = next++;
      }
      slots[static_cast<size_t>(K::kBackwardInput)] = kBackwardSlot;  // a backward has B or I
      return slots;
    }();
    return kSlotOf[static_cast<size_t>(kind)];
  }
  using Cell = std::array<uint32_t, kSlots>;

  const Cell& cell(int stage, int microbatch) const {
    return cells_[static_cast<size_t>(stage) * num_microbatches_ + static_cast<size_t>(microbatch)];
  }
  static ir::ActionPart part_in(const ir::Action& action, size_t slot, int stage, int microbatch);
  void check_complete(const ir::Schedule& schedule, ir::Diagnostics* diagnostics) const;

  const ir::Schedule* schedule_ = nullptr;
  size_t num_microbatches_ = 0;
  bool forward_only_ = true;
  std::vector<Cell> cells_;
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_WORK_INDEX_H_
