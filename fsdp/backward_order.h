#ifndef PIPEWRIGHT_FSDP_BACKWARD_ORDER_H_
#define PIPEWRIGHT_FSDP_BACKWARD_ORDER_H_

#include <cstddef>
#include <deque>
#include <vector>

#include "pipewright/autograd/backward_watch.h"

namespace pipewright::fsdp {

class ShardedUnit;

// One backward of a model: begins and ends it, and posts the reductions of its units in an order
// that is the same on all ranks (backward_order.cc). State of the root unit; for one thread at a
// time.
class BackwardOrder final : public autograd::BackwardWatch {
 public:
  // `root` must outlive it.
  explicit BackwardOrder(ShardedUnit& root) : root_(root) {}

  // To be called by hooks of the units, so that the order knows of the backward that runs. Throws
  // std::runtime_error if the previous backward stopped on an error after it had posted
  // reductions.
  void watch();
  bool is_running() const { return running_; }

  // Posts the reductions of units that are done, as far as the order allows.
  void reduce_ready();
  // Waits until at most `left` posted reductions are pending. Throws std::runtime_error, naming the
  // unit, if one failed; the step is then forgotten.
  void finish(size_t left);
  // `unit` has posted a reduction.
  void posted(ShardedUnit& unit) { pending_.push_back(&unit); }

  // For an executor, which has no single backward per reduction: the order covers all units from
  // the last backward before REDUCE_GRAD on (no-op if it already does), until REDUCE_GRAD.
  void open_for_all();
  void close();
  // Reduces units again that backward came back to after they were reduced, as it does for a module
  // that is called in two checkpointed parts; on all ranks, although some may have nothing to add.
  void reduce_rest();

  // The step has failed.
  void clear();

 private:
  void backward_begins() override;
  bool is_complete() override;
  void backward_ends() override;

  ShardedUnit& root_;
  bool running_ = false;             // a backward that autograd runs
  bool open_for_all_ = false;        // an executor's
  std::vector<ShardedUnit*> order_;  // in which units are reduced
  size_t next_ = 0;                  // to be reduced
  std::deque<ShardedUnit*> pending_;
};

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_BACKWARD_ORDER_H_
