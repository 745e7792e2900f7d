// The order of reductions. Each is a collective, so all ranks must post the same ones in the same
// order, although their backwards may reach units at different times and use different parameters.
//
// The order is fixed when backward enters a forward of the model, from what all ranks share: the
// calls in that forward. Units are reduced in the reverse of the order in which their forwards
// began. So a nested unit is reduced before the unit around it, and a unit that runs at both ends
// of the model is reduced late. A backward through several forwards reduces a unit once for each.
// Units with a call that ends only with the whole backward (call_tracker.cc) come last, and are
// reduced once. A unit that is done early waits for its turn. Forwards that backward does not enter
// play no role, whether or not a rank has kept their outputs. Invariant after reduce_ready():
// order_[0, next_) has been reduced, and order_[next_] is not done.
//
// Units that were used without a call of their forward, for example because another module reads
// one of their weights, are found at the end of backward; they come after all others, in the order
// of the tree.
//
// With an executor, no single forward order applies to all microbatches, so the order of the tree
// is used. Work is linear in the number of units per backward, except the search for duplicates in
// enters() and backward_ends(), which is quadratic in it.
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

bool BackwardOrder::is_done(const Place& place) const {
  return place.forward == kAtEnd ? at_end_ : place.unit->is_done(place.forward);
}

bool BackwardOrder::lists(const ShardedUnit& unit) const {
  return std::ranges::find(order_, &unit, &Place::unit) != order_.end();
}

void BackwardOrder::enters(int64_t forward) {
  forward_ = forward;
  if (std::ranges::find(entered_, forward) != entered_.end()) return;
  entered_.push_back(forward);
  ForwardHistory::Forward* entered = root_.forwards().find(forward);
  if (!entered) return;
  entered->has_backward = true;
  entered->is_passed.assign(entered->ended.size(), false);
  std::vector<ShardedUnit*> units;
  for (ShardedUnit* unit : entered->begun) {
    if (std::ranges::find(units, unit) == units.end()) units.push_back(unit);
  }
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    const auto first_at_end = std::ranges::find(order_, kAtEnd, &Place::forward);
    if (entered->calls_of(**unit).without_end == 0)
      order_.insert(first_at_end, {*unit, forward});
    else if (std::ranges::find(first_at_end, order_.end(), *unit, &Place::unit) == order_.end())
      order_.push_back({*unit, kAtEnd});
  }
}

void BackwardOrder::reduce_ready() {
  for (; next_ < order_.size() && is_done(order_[next_]); ++next_) order_[next_].unit->reduce();
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

void BackwardOrder::complete() {
  finish(0);
  root_.for_each([](ShardedUnit& unit) {
    unit.join_reductions();
    if (OffloadCopies* const copies = unit.params().offload()) copies->wait();
  });
}

void BackwardOrder::open_for_all() {
  if (std::exchange(open_for_all_, true)) return;
  order_.clear();
  next_ = 0;
  root_.for_each([this](ShardedUnit& unit) { order_.push_back({&unit, 0}); });
}

void BackwardOrder::close() { open_for_all_ = false; }

void BackwardOrder::reduce_rest() {
  for (const Place& place : order_) place.unit->reduce_rest();
}

void BackwardOrder::clear() {
  running_ = open_for_all_ = at_end_ = false;
  entered_.clear();
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
  root_.for_each([](ShardedUnit& unit) { unit.adopt_zero_grad(); });
  ++number_;
  forward_ = 0;
  at_end_ = false;
  entered_.clear();
  order_.clear();
  next_ = 0;
}

bool BackwardOrder::is_complete() {
  return std::ranges::all_of(order_, [this](const Place& place) { return is_done(place); });
}

void BackwardOrder::backward_ends() {
  root_.for_each([this](ShardedUnit& unit) {
    if (unit.was_reached() && !lists(unit)) order_.push_back({&unit, kAtEnd});
  });
  at_end_ = true;
  root_.for_each([](ShardedUnit& unit) { unit.leave_backward(); });
  for (const Place& place : order_) {
    if (place.forward != kAtEnd) place.unit->set_done(place.forward);
  }
  reduce_ready();
  reduce_rest();
  root_.for_each([](ShardedUnit& unit) { unit.end_backward(); });
  running_ = false;
  order_.clear();
  next_ = 0;
  if (root_.is_last_backward()) complete();
  root_.for_each([](ShardedUnit& unit) { unit.watch_zero_grad(); });
}

}  // namespace pipewright::fsdp
