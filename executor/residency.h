#ifndef PIPEWRIGHT_EXECUTOR_RESIDENCY_H_
#define PIPEWRIGHT_EXECUTOR_RESIDENCY_H_

#include <memory>

#include "pipewright/modules/data_parallel.h"

namespace pipewright::executor {

// Tracks whether the parameters of one stage are resharded, gathering or unsharded during a step.
// The only caller of the stage's DataParallel:
//
//   resharded --unshard()--> gathering --need_unsharded()--> unsharded --reshard()--> resharded
//
// Throws ContractError for a call that the state does not allow. For one thread at a time.
class Residency {
 public:
  // `data_parallel` is null if no other rank has the stage's parameters.
  Residency(int stage, std::shared_ptr<modules::DataParallel> data_parallel);

  // Starts a step. `whole_step`: the rank's program has no UNSHARD and no RESHARD, so the stage is
  // unsharded from begin() to finish().
  void begin(bool with_backward, bool whole_step);
  // Waits for reductions and gathers in flight. Reshards what begin() has unsharded, and a stage
  // that has been reduced: an optimizer must see shards, also after a program without a last
  // RESHARD.
  void finish();
  // After a failure: aborts pending communication, so that no peer waits for it. Does not throw.
  void abort();

  // UNSHARD: starts to gather the parameters.
  void unshard();
  // RESHARD: frees the gathered parameters.
  void reshard();
  // REDUCE_GRAD: starts to reduce the gradients accumulated since the last one.
  void reduce_grad();
  // WAIT_REDUCE_GRAD: waits for it. The step ends with one if the program has none.
  void wait_reduce();

  // Before an action that reads the parameters: waits for a gather in flight.
  void need_unsharded();
  // Before a W: like need_unsharded(), but leaves a resharded stage as it is if `weight_free`.
  // Returns whether the parameters are freed, so that W must not read them.
  bool prepare_backward_weight(bool weight_free);
  // Before each B, I and W: see DataParallel::before_backward().
  void before_backward(int microbatch, bool last) {
    data_parallel_->before_backward(microbatch, last);
  }
  // After the B or W that was the last.
  void after_last_backward() { data_parallel_->after_last_backward(); }

 private:
  enum class State { kResharded, kGathering, kUnsharded };

  const int stage_;
  const std::shared_ptr<modules::DataParallel> data_parallel_;
  State state_ = State::kUnsharded;
  bool whole_step_ = false;
  bool has_reduced_ = false;  // a REDUCE_GRAD has run in this step
  bool is_reducing_ = false;  // it has not been waited for
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_RESIDENCY_H_
