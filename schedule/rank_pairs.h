#ifndef PIPEWRIGHT_SCHEDULE_RANK_PAIRS_H_
#define PIPEWRIGHT_SCHEDULE_RANK_PAIRS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "ir/action.h"
#include "ir/check.h"
#include "ir/placement.h"

namespace pipewright::schedule {

// The ordered pairs of ranks between which neighbouring stages send, numbered from 0, so that what
// is kept for a pair is found by an index and not by a search. Not changed once built.
class RankPairs {
 public:
  explicit RankPairs(const ir::Placement& placement);

  uint32_t size() const { return static_cast<uint32_t>(pairs_.size()); }
  // The ranks of pair `id`: who sends, who receives.
  std::pair<int, int> ranks(uint32_t id) const { return pairs_[id]; }
  // The pair of a SEND or RECV between stages of two ranks.
  uint32_t of(ir::ActionPart send_or_receive) const {
    const auto stage = static_cast<size_t>(send_or_receive.stage());
    switch (send_or_receive.kind()) {
      case ir::ActionKind::kSendF:
        return forward_[stage];
      case ir::ActionKind::kRecvF:
        return forward_[stage - 1];
      case ir::ActionKind::kSendB:
        return backward_[stage];
      case ir::ActionKind::kRecvB:
        return backward_[stage + 1];
      case ir::ActionKind::kIdle:
      case ir::ActionKind::kForward:
      case ir::ActionKind::kBackward:
      case ir::ActionKind::kBackwardInput:
      case ir::ActionKind::kBackwardWeight:
      case ir::ActionKind::kOverlapFB:
      case ir::ActionKind::kUnshard:
      case ir::ActionKind::kReshard:
      case ir::ActionKind::kReduceGrad:
        break;
    }
    PW_CHECK(false, "only a SEND or a RECV is between two ranks");
    return 0;
  }

 private:
  std::vector<std::pair<int, int>> pairs_;
  std::vector<uint32_t> forward_, backward_;  // by the stage that sends
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_RANK_PAIRS_H_
