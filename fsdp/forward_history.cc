#include "pipewright/fsdp/forward_history.h"

#include <algorithm>

namespace pipewright::fsdp {
namespace {

// Forwards without a backward that are remembered. A backward through an older one reduces at its
// end, in the order of the tree.
constexpr size_t kRemembered = 256;

}  // namespace

void ForwardHistory::Forward::unit_ended(ShardedUnit& unit) {
  ended.push_back(&unit);
  is_passed.push_back(false);
}

std::optional<size_t> ForwardHistory::Forward::pass(const ShardedUnit& unit) {
  for (size_t place = ended.size(); place-- > 0;) {
    if (ended[place] != &unit || is_passed[place]) continue;
    is_passed[place] = true;
    return place;
  }
  return std::nullopt;
}

ForwardHistory::Calls ForwardHistory::Forward::calls_of(const ShardedUnit& unit) const {
  const auto found = calls.find(&unit);
  return found == calls.end() ? Calls{} : found->second;
}

void ForwardHistory::begin(bool trains) {
  std::erase_if(forwards_, [](const Forward& forward) { return forward.has_backward; });
  while (forwards_.size() >= kRemembered) forwards_.pop_front();
  ++number_;
  previous_ = std::exchange(order_, {});
  follows_previous_ = true;
  trains_ = trains;
  if (trains) forwards_.emplace_back().number = number_;
}

ForwardHistory::Forward* ForwardHistory::find(int64_t number) {
  const auto found = std::ranges::find(forwards_, number, &Forward::number);
  return found == forwards_.end() ? nullptr : &*found;
}

ShardedUnit* ForwardHistory::next_after(ShardedUnit& unit) {
  if (prefetched_ == &unit) prefetched_ = nullptr;
  const size_t place = order_.size();
  order_.push_back(&unit);
  follows_previous_ = follows_previous_ && place < previous_.size() && previous_[place] == &unit;
  return follows_previous_ && place + 1 < previous_.size() ? previous_[place + 1] : nullptr;
}

// After a failed step, ranks may have stopped at different places of a forward: whoever followed
// its own would prefetch other units than the others. prefetched_ stays: that unit is still to be
// freed.
void ForwardHistory::clear() {
  forwards_.clear();
  trains_ = false;
  previous_.clear();
  order_.clear();
  follows_previous_ = false;
}

}  // namespace pipewright::fsdp
