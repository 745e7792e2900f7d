// The order of reductions. Each is a collective, so all ranks must post the same ones in the same
// order, although their backwards may reach units at different times and use different parameters.
//
// The order is fixed when backward begins, from what all ranks share: the forwards. Units are
// reduced in the reverse of the order in which their forwards began. So a nested unit is reduced
// before the unit around it, and a unit that runs at both ends of the model is reduced late. Units
// with a call that ends only with the whole backward (call_tracker.cc) come last. A unit that is
// done early waits for its turn. Invariant after reduce_ready(): the units in order_[0, next_) have
// been reduced, and order_[next_] is not done.
//
// Units that were used without a call of their forward, for example because another module reads
// one of their weights, are found at the end of backward; they come after all others, in the order
// of the tree.
//
// With an executor, no single forward order applies to all microbatches, so the order of the tree
// is used. Work is linear in the number of units per backward, except the search for duplicates in
// backward_begins() and backward_ends(), which is quadratic in it.
#include "pipewright/fsdp/backward_order.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "pipewright/fsdp/sharded_unit.h"

namespace pipewright::fsdp {

void BackwardOrder::watch() {
  // Shares ownership of the root: it must outlive the backward.
  BackwardWatch::watch(std::shared_ptr<BackwardWatch>(root_.shared_from_this(), this));
}

void BackwardOrder::reduce_ready() {
  for (; next_ < order_.size() && order_[next_]->is_done(); ++next_) order_[next_]->reduce();
}

void BackwardOrder::finish(size_t left) {
  while (pending_.size() > left) {
    ShardedUnit& unit = *pending_.front();
    pending_.pop_front();
    try {
      unit.wait_reduce();
    } catch (const std::exception& error) {
      const std::string name = unit.display_name();
      root_.for_each([](ShardedUnit& each) { each.forget(); });
      throw std::runtime_error("fully_shard: the reduce-scatter of " + name +
                               " failed: " + error.what());
    }
  }
}

void BackwardOrder::open_for_all() {
  if (std::exchange(open_for_all_, true)) return;
  order_.clear();
  next_ = 0;
  root_.for_each([this](ShardedUnit& unit) { order_.push_back(&unit); });
}

void BackwardOrder::close() { open_for_all_ = false; }

void BackwardOrder::reduce_rest() {
  for (ShardedUnit* unit : order_) {
    if (unit->comes_again() || unit->has_grads()) unit->reduce();
  }
}

void BackwardOrder::clear() {
  running_ = open_for_all_ = false;
  order_.clear();
  next_ = 0;
  pending_.clear();
}

void BackwardOrder::backward_begins() {
  if (std::exchange(running_, true)) {
    // The previous backward stopped on an error. What it accumulated is dropped. If it had posted
    // reductions, ranks may have stopped at different places.
    const bool reduced = next_ > 0;
    root_.for_each([](ShardedUnit& unit) { unit.forget(); });
    if (reduced) {
      throw std::runtime_error(
          "fully_shard: an earlier backward stopped on an error after its reductions had begun: "
          "ranks may have posted different reductions; restart all ranks from a checkpoint");
    }
    running_ = true;
  }
  root_.for_each([](ShardedUnit& unit) { unit.begin_backward(); });
  order_.clear();
  next_ = 0;
  for (ShardedUnit* unit : root_.forwards().begun()) {
    if (unit->has_backward_to_come() && std::ranges::find(order_, unit) == order_.end())
      order_.push_back(unit);
  }
  std::ranges::reverse(order_);
  std::stable_partition(order_.begin(), order_.end(),
                        [](const ShardedUnit* unit) { return !unit->ends_with_backward(); });
}

bool BackwardOrder::is_complete() {
  return std::ranges::all_of(order_, [](const ShardedUnit* unit) { return unit->is_done(); });
}

void BackwardOrder::backward_ends() {
  root_.for_each([this](ShardedUnit& unit) {
    if (unit.was_reached() && std::ranges::find(order_, &unit) == order_.end())
      order_.push_back(&unit);
  });
  for (ShardedUnit* unit : order_) {
    if (!unit->is_done()) unit->post_backward();
  }
  reduce_ready();
  reduce_rest();
  root_.for_each([](ShardedUnit& unit) { unit.end_backward(); });
  running_ = false;
  order_.clear();
  next_ = 0;
  if (!root_.is_last_backward()) return;
  finish(0);
  root_.drop_lost_forwards();  // a no-op if another forward still waits for its backward
}

}  // namespace pipewright::fsdp
