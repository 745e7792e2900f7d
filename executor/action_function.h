#ifndef PIPEWRIGHT_EXECUTOR_ACTION_FUNCTION_H_
#define PIPEWRIGHT_EXECUTOR_ACTION_FUNCTION_H_

#include <functional>

#include "pipewright/executor/stage.h"
#include "pipewright/ir/action.h"

// User functions that replace or surround an action (PyTorch's custom functions of its schedule
// runtime):
//
//   executor.set_function(ir::ActionKind::kForward, [](const ActionContext& context) {
//     const Timer timer("F");
//     context.run_default();
//   });

namespace pipewright::executor {

class ActionRunner;
struct PlannedAction;

// The action that a user function runs for. Valid during the call.
class ActionContext {
 public:
  ActionContext(ActionRunner& runner, const PlannedAction& planned)
      : runner_(runner), planned_(planned) {}

  const ir::Action& action() const;
  // A stage of this rank. Throws ContractError for any other stage.
  Stage& stage(int index) const;
  // Runs the action as if no function were registered for it. The parts of a compound run one after
  // the other, in the order in which it lists them, each through the function that is registered
  // for its kind.
  void run_default() const;
  // Runs one part of a compound, through the function that is registered for the part's kind. For
  // any other action, `part` is the action itself and runs without its function.
  void run(ir::ActionPart part) const;

 private:
  ActionRunner& runner_;
  const PlannedAction& planned_;
};

// Called instead of an action. An exception ends the step on every rank.
using ActionFunction = std::function<void(const ActionContext&)>;

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_ACTION_FUNCTION_H_
