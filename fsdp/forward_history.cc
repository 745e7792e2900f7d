#include "pipewright/fsdp/forward_history.h"

namespace pipewright::fsdp {

void ForwardHistory::begin(const std::shared_ptr<Call>& call, bool trains) {
  trains_ = trains;
  if (trains) open_.push_back(call);
  ++number_;
}

size_t ForwardHistory::unit_ended(ShardedUnit& unit) {
  ended_.push_back(&unit);
  return ended_.size() - 1;
}

ShardedUnit* ForwardHistory::ended_before(size_t place) const {
  return place > 0 && place <= ended_.size() ? ended_[place - 1] : nullptr;
}

bool ForwardHistory::has_open_forwards() {
  std::erase_if(open_, [](const std::weak_ptr<Call>& known) {
    const auto call = known.lock();
    return !call || call->begun;
  });
  return !open_.empty();
}

void ForwardHistory::clear_order() {
  begun_.clear();
  ended_.clear();
}

void ForwardHistory::clear() {
  open_.clear();
  clear_order();
}

}  // namespace pipewright::fsdp
