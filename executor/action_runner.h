#ifndef PIPEWRIGHT_EXECUTOR_ACTION_RUNNER_H_
#define PIPEWRIGHT_EXECUTOR_ACTION_RUNNER_H_

#include <map>
#include <vector>

#include "pipewright/executor/action_function.h"
#include "pipewright/executor/data_flow.h"
#include "pipewright/executor/program/program.h"
#include "pipewright/executor/residency.h"
#include "pipewright/executor/stage.h"

namespace pipewright::executor {

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
  };

  // `placement` must outlive this object; `transfers` may be null if this rank sends and receives
  // nothing.
  ActionRunner(const ir::Placement& placement, int num_microbatches,
               std::map<int, LocalStage> stages, Transfers* transfers, Options options);
  ActionRunner(const ActionRunner&) = delete;
  ActionRunner& operator=(const ActionRunner&) = delete;

  // Runs `function` instead of each action of this kind. An empty function restores the default.
  void set_function(ir::ActionKind kind, ActionFunction function);

  // Starts a step over `row`. Each list of `microbatches` is empty or has num_microbatches
  // elements.
  void begin(const RowPlan& row, bool with_backward, bool keep_outputs, Microbatches microbatches);
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
    bool recomputes;
    std::vector<Phase> phases = {};  // by microbatch
  };

  Local& local(int stage);
  static Phase& phase_of(Local& stage, ir::ActionPart part);

  void run_default(const PlannedAction& planned);
  void run_part(ir::ActionPart part, bool last_backward);
  void run_with_function(ir::ActionPart part, const PlannedAction& planned);

  void forward(ir::ActionPart part);
  void backward(ir::ActionPart part, bool last_backward);  // B and I
  void backward_weight(ir::ActionPart part, bool last_backward);

  const int last_stage_;
  const int num_microbatches_;
  const bool weight_free_w_;
  std::map<int, Local> stages_;
  DataFlow flow_;
  std::map<ir::ActionKind, ActionFunction> functions_;
  bool with_backward_ = false;
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_ACTION_RUNNER_H_
