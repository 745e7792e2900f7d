#include "schedule/rank_pairs.h"

#include <map>

#include "ir/check.h"

namespace pipewright::schedule {

RankPairs::RankPairs(const ir::Placement& placement) {
  const auto num_stages = static_cast<size_t>(placement.num_stages());
  std::map<std::pair<int, int>, uint32_t> ids;
  const auto id_of = [&](int from, int to) {
    const auto [entry, is_new] = ids.try_emplace({from, to}, size());
    if (is_new) pairs_.emplace_back(from, to);
    return entry->second;
  };
  forward_.resize(num_stages);
  backward_.resize(num_stages);
  for (int stage = 0; stage + 1 < placement.num_stages(); ++stage) {
    const int rank = placement.rank_of(stage), next = placement.rank_of(stage + 1);
    if (rank == next) continue;
    forward_[static_cast<size_t>(stage)] = id_of(rank, next);
    backward_[static_cast<size_t>(stage) + 1] = id_of(next, rank);
  }
}

uint32_t RankPairs::of(ir::ActionPart part) const {
  const auto stage = static_cast<size_t>(part.stage());
  switch (part.kind()) {
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

}  // namespace pipewright::schedule
