#ifndef PIPEWRIGHT_FSDP_BACKWARD_ORDER_H_
#define PIPEWRIGHT_FSDP_BACKWARD_ORDER_H_

#include <cstddef>
#include <deque>
#include <vector>

#include "pipewright/autograd/hooks.h"

namespace pipewright::fsdp {

class ShardedUnit;

// Handles one backward of a model: what happens at its start and end, and the order in which its
// units post their reductions, which is the same on all ranks (backward_order.cc). State of the
// root unit; for one thread at a time.
class BackwardOrder final : public autograd::BackwardWatch {
 public:
  // `root` must outlive this object.
  explicit BackwardOrder(ShardedUnit& root) : root_(root) {}

  // To be called by the units' hooks; notices the start of a backward. Throws std::runtime_error if
  // the previous backward stopped on an error after it had posted reductions.
  void watch();
  // The number of the current or last backward, from 1.
  int64_t number() const { return number_; }
  // Backward enters a call of the model's forward `forward`: its units join the order.
  void enters(int64_t forward);
  // The forward that it entered last; 0 if none.
  int64_t forward() const { return forward_; }

  // Posts the reductions of units that are done, up to the first unit in the order that is not.
  void reduce_ready();
  // Waits until at most `left` posted reductions are pending. If one failed, drops all state of the
  // step and throws std::runtime_error, naming the unit.
  void finish(size_t left);
  // Waits for all of them, and makes the host wait for gradients that are copied to it.
  void complete();
  // `unit` has posted a reduction.
  void posted(ShardedUnit& unit) { pending_.push_back(&unit); }

  // For an executor, where several backwards may precede one reduction. From open_for_all(), which
  // is called at the last backward before a REDUCE_GRAD, until close(), which ends the REDUCE_GRAD,
  // the order contains all units. open_for_all() is a no-op if the order is already open.
  void open_for_all();
  void close();
  // Reduces units again that backward entered again after they had been reduced, such as a module
  // that is called in two checkpointed parts.
  void reduce_rest();

  // The step has failed.
  void clear();

 private:
  // A reduction: of one unit, for one forward that backward passes.
  struct Place {
    ShardedUnit* unit;
    int64_t forward;  // kAtEnd: for all forwards, at the end of backward
  };
  static constexpr int64_t kAtEnd = -1;

  bool is_done(const Place& place) const;
  bool lists(const ShardedUnit& unit) const;
  void backward_begins() override;
  bool is_complete() override;
  void backward_ends() override;

  ShardedUnit& root_;
  bool running_ = false;       // autograd runs a backward
  bool open_for_all_ = false;  // an executor has called open_for_all()
  bool at_end_ = false;        // the backward has passed all its forwards
  int64_t number_ = 0, forward_ = 0;
  std::vector<int64_t> entered_;  // forwards
  std::vector<Place> order_;      // those at the end of backward come last
  size_t next_ = 0;               // index in order_ of the next reduction
  std::deque<ShardedUnit*> pending_;
};

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_BACKWARD_ORDER_H_
