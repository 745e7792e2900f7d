#ifndef PIPEWRIGHT_SCHEDULE_RANK_PAIRS_H_
#define PIPEWRIGHT_SCHEDULE_RANK_PAIRS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "ir/action.h"
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
  uint32_t of(ir::ActionPart send_or_receive) const;

 private:
  std::vector<std::pair<int, int>> pairs_;
  std::vector<uint32_t> forward_, backward_;  // by the stage that sends
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_RANK_PAIRS_H_
