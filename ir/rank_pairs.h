#ifndef PIPEWRIGHT_IR_RANK_PAIRS_H_
#define PIPEWRIGHT_IR_RANK_PAIRS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "pipewright/ir/action.h"
#include "pipewright/ir/check.h"
#include "pipewright/ir/placement.h"

namespace pipewright::ir {

// Numbers the ordered pairs of ranks that exchange tensors, so that data about a pair can be kept
// in a vector instead of a map. With stages 0 1 2 3 on ranks 0 1 1 0 there are two pairs: (0, 1) is
// 0 and (1, 0) is 1. Immutable after construction; safe to use from any thread.
class RankPairs {
 public:
  explicit RankPairs(const Placement& placement);

  uint32_t size() const { return static_cast<uint32_t>(pairs_.size()); }
  // The sending and the receiving rank of pair `id`.
  std::pair<int, int> ranks(uint32_t id) const { return pairs_[id]; }
  // The pair that a SEND or RECV belongs to; its two stages must be on different ranks. Throws
  // InternalError for other kinds.
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
      case ActionKind::kWaitSendF:
      case ActionKind::kWaitSendB:
      case ActionKind::kWaitReduceGrad:
        break;
    }
    PW_CHECK(false, "expected a SEND or RECV");
    return 0;
  }

 private:
  std::vector<std::pair<int, int>> pairs_;
  std::vector<uint32_t> forward_, backward_;  // by sending stage
};

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_RANK_PAIRS_H_
