#ifndef PIPEWRIGHT_SCHEDULE_LOWERING_ADD_UNSHARD_RESHARD_H_
#define PIPEWRIGHT_SCHEDULE_LOWERING_ADD_UNSHARD_RESHARD_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipewright/ir/lowering.h"
#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

struct ResidencyPolicy {
  // How many stages of a rank may be unsharded at a time, at least 1. A compound of two stages may
  // need 2.
  int residency = 3;
  // How far ahead stages are unsharded: the next `lookahead` different stages in use, counted from
  // the next action on. At least 1; a list has one distance per rank.
  ir::Lookahead lookahead = 3;
  ir::Eviction evict = ir::Eviction::kPytorch;
  // Reshards several stages in the order in which they were unsharded (PyTorch 2.15), instead of
  // ascending.
  bool oldest_first = false;
};

// What unset policies mean.
ResidencyPolicy residency_policy(const ir::Lowering& policies);

// Adds UNSHARDs and RESHARDs so that each stage is unsharded whenever it is used. Idle slots are
// dropped. Residency and lookahead 2:
//
//   before  0F0 0F1 1F0 1F1 2F0
//   after   0UNSHARD 1UNSHARD 0F0 0F1 0RESHARD 2UNSHARD 1F0 1F1 1RESHARD 2F0 2RESHARD
//
// kPytorch reshards a stage as soon as it is not among the next `residency` different stages in
// use (PyTorch's _add_unshard_reshard; in 2.11 residency and lookahead are both 3).
//
// kFarthest reshards a stage when it is not needed again. If another stage needs room, it reshards
// the one whose next use is farthest away, which results in the fewest UNSHARDs possible (Belady,
// IBM Systems Journal 1966). The lookahead moves an UNSHARD earlier, but never so early that it
// replaces a stage that is needed first.
//
// The lookahead moves UNSHARDs only: it changes neither their number nor any RESHARD
// (pytorch#196706).
//
// A compound is never divided, so it may exceed the residency by one stage. The program then
// records no residency, because the limit does not hold.
//
// A pure function. Linear in the number of actions for a fixed number of stages per rank.
ir::Program add_unshard_reshard(const ir::ComputeOrder& order, const ResidencyPolicy& policy);

// The least residency from `policy.residency` on that holds for this order: see above. Each
// residency tried costs one add_unshard_reshard().
int least_residency(const ir::ComputeOrder& order, ResidencyPolicy policy);

// By rank: the fewest UNSHARDs with which it can run its row with at most `residency` stages
// unsharded at a time, or one more for a compound. The order has no idle slots. Time as above.
std::vector<size_t> fewest_unshards(const ir::ComputeOrder& order, int residency);

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

#endif  // PIPEWRIGHT_SCHEDULE_LOWERING_ADD_UNSHARD_RESHARD_H_
