#ifndef PIPEWRIGHT_EXECUTOR_ACTION_RUNNER_H_
#define PIPEWRIGHT_EXECUTOR_ACTION_RUNNER_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "pipewright/executor/row_plan.h"
#include "pipewright/executor/stage.h"
#include "pipewright/executor/transfers.h"
#include "pipewright/modules/data_parallel.h"

namespace pipewright::executor {

// A loss of one microbatch: one number, from the outputs of the last stage and the targets.
using LossFunction = std::function<at::Tensor(const Tensors& outputs, const Tensors& targets)>;

// A stage that a rank holds.
struct LocalStage {
  std::shared_ptr<Stage> stage;
  std::shared_ptr<modules::DataParallel> data_parallel = nullptr;  // null: one rank has all of it
};

class ActionRunner;

// What a registered function is given.
class ActionContext {
 public:
  ActionContext(ActionRunner& runner, const PlannedAction& planned)
      : runner_(runner), planned_(planned) {}

  const ir::Action& action() const { return planned_.action; }
  // The stage that this rank holds; throws for another.
  Stage& stage(int index) const;
  // What would have been done without the function: of a compound, its parts one after another,
  // each with the function that is registered for it.
  void run_default() const;
  // One part of a compound, or the action itself, with the function that is registered for it if
  // it is a part.
  void run(ir::ActionPart part) const;

 private:
  ActionRunner& runner_;
  const PlannedAction& planned_;
};

// Takes the place of an action, or surrounds it. What it throws ends the step.
using ActionFunction = std::function<void(const ActionContext&)>;

// The microbatches of one step, by index; what a rank does not need may be empty.
struct Microbatches {
  std::vector<Tensors> inputs = {};  // of the first stage
  std::vector<Tensors> extra = {};   // this rank's own, given to each of its stages behind the rest
  std::vector<Tensors> targets = {};  // of the loss
};

// The actions of one rank on real tensors: which tensor goes where, in what state everything must
// be. Every action checks that state, so that a list which nobody verified ends in an error too.
// For one thread at a time.
class ActionRunner {
 public:
  struct Options {
    LossFunction loss = {};
    bool scale_grads = true;
    bool weight_free_w = false;
  };

  // `placement` must outlive it; `transfers` may be null where nothing is sent.
  ActionRunner(const ir::Placement& placement, int num_microbatches,
               std::map<int, LocalStage> stages, Transfers* transfers, Options options);
  ActionRunner(const ActionRunner&) = delete;
  ActionRunner& operator=(const ActionRunner&) = delete;

  // An empty function restores what there was.
  void set_function(ir::ActionKind kind, ActionFunction function);

  // What a step leaves.
  struct Results {
    std::vector<at::Tensor> losses;  // by microbatch; of the last stage
    std::vector<Tensors> outputs;    // by microbatch; of the last stage, if they are kept
  };

  // A step over `row`; microbatches that are given must be as many as there are.
  void begin(const RowPlan& row, bool with_backward, bool keep_outputs, Microbatches microbatches);
  void run(const PlannedAction& planned);
  // Waits for what is on its way, and for reductions.
  Results finish();
  // After a failure: forgets everything.
  void clear();

 private:
  friend class ActionContext;

  enum class Phase { kNothing, kForward, kInput, kDone };
  enum class Residency { kUnsharded, kSharded, kUnsharding };

  // Of one stage and microbatch.
  struct Slot {
    Phase phase = Phase::kNothing;
    std::optional<Tensors> inputs;        // handed over by the stage before, on this rank
    std::optional<Tensors> outputs;       // until they are sent
    std::optional<Tensors> output_grads;  // handed over by the stage behind, on this rank
    std::optional<Tensors> input_grads;   // until they are sent
    size_t num_inputs = 0;                // without the extra ones
    at::Tensor loss;
    Tensors loss_inputs;  // leaves of the loss's graph
  };
  struct Local {
    LocalStage with;
    Residency residency = Residency::kUnsharded;
    bool reduces = false;  // there was a REDUCE_GRAD in this step
    std::vector<Slot> slots;
  };

  Local& local(int stage);
  Slot& slot_of(ir::ActionPart part);
  bool is_local(int stage) const { return stages_.contains(stage); }
  bool is_first(int stage) const { return stage == 0; }
  bool is_last(int stage) const { return stage == placement_.num_stages() - 1; }

  void run_default(const PlannedAction& planned);
  void run_part(ir::ActionPart part, bool last_backward);
  void run_with_function(ir::ActionPart part, const PlannedAction& planned);

  void forward(ir::ActionPart part);
  void backward(ir::ActionPart part, bool last_backward);  // B and I
  void backward_weight(ir::ActionPart part, bool last_backward);
  Tensors inputs_of(ir::ActionPart part, Slot& slot);
  Tensors output_grads_of(ir::ActionPart part, Slot& slot);
  void use_outputs(ir::ActionPart part, Slot& slot, Tensors outputs);
  void compute_loss(ir::ActionPart part, Slot& slot, const Tensors& outputs);
  void need_unsharded(Local& stage, ir::ActionPart part);
  Transfers& transfers(ir::ActionPart part);

  const ir::Placement& placement_;
  const int num_microbatches_;
  std::map<int, Local> stages_;
  Transfers* const transfers_;
  const Options options_;
  std::map<ir::ActionKind, ActionFunction> functions_;

  bool with_backward_ = false;
  bool has_residency_ = false;  // of the row that runs
  bool keep_outputs_ = false;
  Microbatches microbatches_;
  Results results_;
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_ACTION_RUNNER_H_
