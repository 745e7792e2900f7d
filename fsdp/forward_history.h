#ifndef PIPEWRIGHT_FSDP_FORWARD_HISTORY_H_
#define PIPEWRIGHT_FSDP_FORWARD_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "pipewright/fsdp/call_tracker.h"

namespace pipewright::fsdp {

class ShardedUnit;

// The forwards of a model whose backward has not run yet: the order in which the forwards of its
// units began, and the order in which they ended. Backward reduces in the reverse of the first
// order, and prefetches in the reverse of the second. State of the root unit; for one thread at a
// time.
class ForwardHistory {
 public:
  // A forward of a unit, inside the forward of the unit around it. The outermost one is the forward
  // of the model.
  class Scope {
   public:
    explicit Scope(ForwardHistory& history) : depth_(++history.depth_) {}
    ~Scope() { --depth_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    bool is_outermost() const { return depth_ == 1; }

   private:
    int& depth_;
  };
  bool is_inside_forward() const { return depth_ > 0; }

  // The outermost forward begins with `call`. `trains`: grad mode is on, so a backward may follow.
  void begin(const std::shared_ptr<Call>& call, bool trains);
  // `trains` and the number, counted from 1, of the current outermost forward.
  bool trains() const { return trains_; }
  int64_t number() const { return number_; }

  // To be called within a forward that trains. unit_ended() returns the index of this forward of
  // the unit among all that have ended.
  void unit_began(ShardedUnit& unit) { begun_.push_back(&unit); }
  size_t unit_ended(ShardedUnit& unit);
  const std::vector<ShardedUnit*>& begun() const { return begun_; }
  // The unit whose forward ended just before the one at `place`; null for the first one.
  ShardedUnit* ended_before(size_t place) const;

  // Whether any forward may still have a backward: its outputs exist, and no backward of it has
  // begun. Forgets all other forwards.
  bool has_open_forwards();
  void clear_order();
  void clear();

 private:
  int depth_ = 0;
  int64_t number_ = 0;
  bool trains_ = false;
  std::vector<std::weak_ptr<Call>> open_;    // outermost calls
  std::vector<ShardedUnit*> begun_, ended_;  // one entry per forward of a unit
};

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_FORWARD_HISTORY_H_
