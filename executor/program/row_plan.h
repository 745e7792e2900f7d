#ifndef PIPEWRIGHT_EXECUTOR_PROGRAM_ROW_PLAN_H_
#define PIPEWRIGHT_EXECUTOR_PROGRAM_ROW_PLAN_H_

#include <utility>
#include <vector>

#include "pipewright/ir/schedule.h"

// Data that the executor derives from a program before running it, by pure functions, linear in the
// number of actions. Torch-free.

namespace pipewright::executor {

struct PlannedAction {
  ir::Action action;
  int step = 0;  // its index in the row
  // The action's B or W is the last one of its stage before the stage's next REDUCE_GRAD.
  bool last_backward = false;
};

// One rank's row of a program.
struct RowPlan {
  std::vector<PlannedAction> actions;  // without idle slots
  bool has_backward = false;
  bool has_residency = false;  // contains UNSHARD or RESHARD
};

RowPlan plan_row(const ir::Row& row);

// The ordered pairs of ranks along which a program sends, each once, in ascending order.
std::vector<std::pair<int, int>> edges_of(const ir::Program& program);

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_PROGRAM_ROW_PLAN_H_
