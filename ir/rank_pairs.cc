#include "pipewright/ir/rank_pairs.h"

#include <map>

namespace pipewright::ir {

RankPairs::RankPairs(const Placement& placement) {
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

}  // namespace pipewright::ir
