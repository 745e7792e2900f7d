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

  // The step of the F, B, I, W, SEND or RECV of this kind; none if there is none.
  std::optional<int> step_of(ir::ActionKind kind, int stage, int microbatch) const;

 private:
  static constexpr uint32_t kAbsent = UINT32_MAX;
  static constexpr size_t kSlots = 7;  // F, backward (B or I), W, SEND_F, RECV_F, SEND_B, RECV_B
  using Cell = std::array<uint32_t, kSlots>;

  const Cell& cell(int stage, int microbatch) const {
    return cells_[static_cast<size_t>(stage) * num_microbatches_ + static_cast<size_t>(microbatch)];
  }
  void check_complete(const ir::Schedule& schedule, ir::Diagnostics* diagnostics) const;

  const ir::Schedule* schedule_ = nullptr;
  size_t num_microbatches_ = 0;
  bool forward_only_ = true;
  std::vector<Cell> cells_;
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_WORK_INDEX_H_
