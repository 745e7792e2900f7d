#ifndef PIPEWRIGHT_SCHEDULE_LOWERING_NEXT_STAGES_H_
#define PIPEWRIGHT_SCHEDULE_LOWERING_NEXT_STAGES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

// The first `size` different stages that a row uses from some action on: a window whose two ends
// only move forward, so that a walk along the row is linear in its actions.
//
//   NextStages next(row, 2, &uses);
//   for (const ir::Action& action : row) {
//     next.fill([](int stage) {});  // next.has(stage): among the next 2 stages, from `action` on
//     next.pass(action);
//   }
//
// Actions that are not computes use no stage. The row must outlive it; not thread-safe.
class NextStages {
 public:
  // `uses` has an entry per stage, all 0; they are 0 again after the last action.
  NextStages(const ir::Row& row, int size, std::vector<uint32_t>* uses)
      : row_(row), size_(static_cast<size_t>(size)), uses_(*uses) {}

  // Extends the window to its size. Calls `gained` for each new stage, soonest first.
  template <typename Gained>
  void fill(Gained gained) {
    // A compound adds both of its stages, even if that is one more than the size.
    for (; different_ < size_ && end_ < row_.size(); ++end_) {
      if (!ir::is_compute(row_[end_].kind())) continue;
      for (const ir::ActionPart part : row_[end_].parts()) {
        if (uses_[static_cast<size_t>(part.stage())]++ != 0) continue;
        ++different_;
        gained(part.stage());
      }
    }
  }
  // Moves past an action. True if a stage left the window.
  bool pass(const ir::Action& action) {
    const size_t before = different_;
    if (!ir::is_compute(action.kind())) return false;
    for (const ir::ActionPart part : action.parts())
      different_ -= --uses_[static_cast<size_t>(part.stage())] == 0;
    return different_ != before;
  }
  bool has(int stage) const { return uses_[static_cast<size_t>(stage)] != 0; }

 private:
  const ir::Row& row_;
  size_t size_;
  std::vector<uint32_t>& uses_;  // by stage: number of uses in the window
  size_t different_ = 0;
  size_t end_ = 0;
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_LOWERING_NEXT_STAGES_H_
