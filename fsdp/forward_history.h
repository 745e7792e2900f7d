#ifndef PIPEWRIGHT_FSDP_FORWARD_HISTORY_H_
#define PIPEWRIGHT_FSDP_FORWARD_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace pipewright::fsdp {

class ShardedUnit;

// The forwards of a model that a backward may still pass: for each, the order in which its units
// began and ended, and how often they were called. Backward reduces in the reverse of the first
// order, and prefetches in the reverse of the second; the next forward prefetches in the first.
// State of the root unit; for one thread at a time.
//
// The history depends only on calls, which all ranks share, and never on whether a rank has kept
// the outputs of a forward. So a forward without a backward stays until it is one of the oldest.
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

  // The calls of one unit in one forward, as far as backward passes them.
  struct Calls {
    int with_end = 0;      // backward computes gradients of their inputs
    int without_end = 0;   // it does not: they end with the whole backward
    int checkpointed = 0;  // in checkpointed parts: backward repeats them

    void add(bool has_end) { ++(has_end ? with_end : without_end); }
  };
  // One forward of the model.
  struct Forward {
    int64_t number = 0;
    std::vector<ShardedUnit*> begun, ended;  // one entry per forward of a unit
    std::map<const ShardedUnit*, Calls> calls;
    // Parallel to `ended`: whether the backward that runs has reached it.
    std::vector<bool> is_passed;
    bool has_backward = false;  // a backward has passed it

    void unit_ended(ShardedUnit& unit);
    // The last forward of the unit that the backward has not reached, which it reaches now: its
    // index in `ended`. nullopt if there is none.
    std::optional<size_t> pass(const ShardedUnit& unit);
    Calls calls_of(const ShardedUnit& unit) const;
  };

  // The outermost forward begins. `trains`: grad mode is on, so a backward may follow. Forgets the
  // forwards that have had their backward.
  void begin(bool trains);
  // The number, counted from 1, of the current outermost forward.
  int64_t number() const { return number_; }
  // The forward that runs; null if it does not train.
  Forward* current() { return trains_ && !forwards_.empty() ? &forwards_.back() : nullptr; }
  // Null if it is not, or no longer, in the history.
  Forward* find(int64_t number);

  // `unit` begins, in any forward. Returns the unit that will begin next if this forward goes on
  // like the previous one, which it has done so far; null if that is not known.
  ShardedUnit* next_after(ShardedUnit& unit);
  // `unit` has been gathered ahead of its forward. take_unused() returns the last such unit if its
  // forward has not begun, once; otherwise null.
  void prefetched(ShardedUnit& unit) { prefetched_ = &unit; }
  ShardedUnit* take_unused() { return std::exchange(prefetched_, nullptr); }

  // Forgets all forwards, and the order in which units begin.
  void clear();

 private:
  int depth_ = 0;
  int64_t number_ = 0;
  bool trains_ = false;
  std::deque<Forward> forwards_;                // by number
  std::vector<ShardedUnit*> previous_, order_;  // in which units begin: the last forward, this one
  bool follows_previous_ = false;               // so far
  ShardedUnit* prefetched_ = nullptr;
};

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_FORWARD_HISTORY_H_
