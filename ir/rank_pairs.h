#ifndef PIPEWRIGHT_IR_RANK_PAIRS_H_
#define PIPEWRIGHT_IR_RANK_PAIRS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "pipewright/ir/action.h"
#include "pipewright/ir/check.h"
#include "pipewright/ir/placement.h"

namespace pipewright::ir {

// The ordered pairs of ranks between which neighbouring stages send, numbered from 0, so that what
// is kept for a pair is found by an index and not by a search. Not changed once built.
class RankPairs {
 public:
  explicit RankPairs(const Placement& placement);

  uint32_t size() const { return static_cast<uint32_t>(pairs_.size()); }
  // The ranks of pair `id`: who sends, who receives.
  std::pair<int, int> ranks(uint32_t id) const { return pairs_[id]; }
  // The pair of a SEND or RECV between stages of two ranks.
  uint32_t of(ActionPart send_or_receive) const {
    const auto stage = static_cast<size_t>(send_or_receive.stage());
    switch (send_or_receive.kind()) {
      case ActionKind::kSendF:
        return forward_[stage];
      case ActionKind::kRecvF:
        return forward_[stage - 1];
      case ActionKind::kSendB:
        return backward_[stage];
      case ActionKind::kRecvB:
        return backward_[stage + 1];
      case ActionKind::kIdle:
      case ActionKind::kForward:
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
      case ActionKind::kBackwardWeight:
      case ActionKind::kOverlapFB:
      case ActionKind::kUnshard:
      case ActionKind::kReshard:
      case ActionKind::kReduceGrad:
        break;
    }
    PW_CHECK(false, "only a SEND or a RECV is between two ranks");
    return 0;
  }

 private:
  std::vector<std::pair<int, int>> pairs_;
  std::vector<uint32_t> forward_, backward_;  // by the stage that sends
};

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_RANK_PAIRS_H_
