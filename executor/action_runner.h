#ifndef PIPEWRIGHT_EXECUTOR_ACTION_RUNNER_H_
#define PIPEWRIGHT_EXECUTOR_ACTION_RUNNER_H_

#include <c10/core/Device.h>

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "pipewright/comms/side_stream.h"
#include "pipewright/executor/action_function.h"
#include "pipewright/executor/data_flow.h"
#include "pipewright/executor/program/program.h"
#include "pipewright/executor/stage.h"
#include "pipewright/executor/step_lock.h"
#include "pipewright/modules/data_parallel.h"

namespace pipewright::executor {

class Recorder;

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

// Runs the actions of one rank on real tensors, one call per action. Checks before each action that
// its inputs exist and that the stage is in the right state, so that an invalid program fails with
// an error even if it was not verified. For one thread at a time.
class ActionRunner {
 public:
  struct Options {
    LossFunction loss = {};
    bool scale_grads = true;
    bool weight_free_w = false;       // W may run while the stage is resharded
    std::vector<int> recompute = {};  // the stages that recompute, ascending
    int slices = 1;                   // that each microbatch is cut into
    StepLock* lock = nullptr;         // may be null
    std::vector<int> offload = {};    // the stages that offload, ascending
    at::Device device = at::kCPU;     // of the stages' tensors
  };

  // `stages` are those of program rank `rank`. `placement` must outlive this object; `transfers`
  // may be null if this rank sends and receives nothing.
  ActionRunner(const ir::Placement& placement, int num_microbatches, int rank,
               std::map<int, LocalStage> stages, Transfers* transfers, Options options);
  ActionRunner(const ActionRunner&) = delete;
  ActionRunner& operator=(const ActionRunner&) = delete;

  // Runs `function` instead of each action of this kind. An empty function restores the default.
  void set_function(ir::ActionKind kind, ActionFunction function);

  // Starts a step over `row`. Each list of `microbatches` is empty or has num_microbatches
  // elements. `recorder`, which may be null, gets the recomputations and the work beside the
  // actions.
  void begin(const RowPlan& row, bool with_backward, bool keep_outputs, Microbatches microbatches,
             Recorder* recorder);
  // Runs the next action. Throws ContractError if its inputs are missing or the state of its stage
  // does not allow it. Propagates exceptions of stages, of the loss and of user functions.
  void run(const PlannedAction& planned);
  // Ends the step: waits for its transfers and reductions, and returns its results.
  StepOutputs finish();
  // After a failure: frees all state of the step.
  void clear();

 private:
  friend class ActionContext;

  // The progress of one microbatch through a stage.
  enum class Phase { kNotRun, kForwardDone, kInputGradDone, kDone };

  struct Local {
    std::shared_ptr<Stage> stage;
    Residency residency;
    bool recomputes, offloads;
    std::vector<Phase> phases = {};  // by microbatch
  };

  Local& local(int stage);
  static Phase& phase_of(Local& stage, ir::ActionPart part);

  // The copies that come before `step`.
  void post_copies(int step);
  // Calls function(stage of the copy) on the stream on which its microbatch runs, whose memory it
  // is.
  template <typename Function>
  void on_stream_of(const PlannedCopy& copy, const Function& function);
  // Calls `start`, which starts a copy on copy_stream_, and records it.
  template <typename Function>
  void record_copy(const PlannedCopy& copy, const Function& start);

  // Before and after an action of which a part runs on the side stream.
  void fork(const PlannedAction& planned);
  void join();

  void run_default(const PlannedAction& planned);
  void run_part(ir::ActionPart part, const PlannedAction& planned);
  void run_with_function(ir::ActionPart part, const PlannedAction& planned);
  void run_other(ir::ActionPart part);  // that is no compute

  void forward(ir::ActionPart part);
  void backward(ir::ActionPart part, bool last_backward);  // B and I
  void backward_weight(ir::ActionPart part, bool last_backward);

  const int last_stage_;
  const int num_microbatches_;
  const int slices_;
  const bool weight_free_w_;
  const at::Device device_;
  std::map<int, Local> stages_;
  DataFlow flow_;
  std::map<ir::ActionKind, ActionFunction> functions_;
  bool with_backward_ = false;
  Recorder* recorder_ = nullptr;                                  // of the step
  comms::SideStream compute_stream_{/*is_high_priority=*/false};  // beside the current one
  bool is_forked_ = false;  // an action runs of which a part is on that
  comms::SideStream copy_stream_;
  std::span<const PlannedCopy> copies_;  // of the step that are left
  std::vector<PlannedCopy> leaving_;     // to the host, not yet freed on the device
  int copied_before_ = -1;               // the step before which copies were posted last
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_ACTION_RUNNER_H_
