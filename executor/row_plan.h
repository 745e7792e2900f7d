#ifndef PIPEWRIGHT_EXECUTOR_ROW_PLAN_H_
#define PIPEWRIGHT_EXECUTOR_ROW_PLAN_H_

#include <utility>
#include <vector>

#include "pipewright/ir/schedule.h"

// What the executor works out of one rank's list before it runs it. No LibTorch.

namespace pipewright::executor {

struct PlannedAction {
  ir::Action action;
  int step = 0;  // its index in the row
  // The action's B or W is the last of its stage before the stage's next REDUCE_GRAD.
  bool last_backward = false;
};

struct RowPlan {
  std::vector<PlannedAction> actions;  // idle slots left out
  bool has_backward = false;
  bool has_residency = false;  // there is an UNSHARD or RESHARD
};

RowPlan plan_row(const ir::Row& row);

// The ordered pairs of ranks along which a program sends or receives, each once, ascending.
std::vector<std::pair<int, int>> edges_of(const ir::Program& program);

// The compute actions of a program, in their order.
ir::ComputeOrder compute_order(const ir::Program& program);

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_ROW_PLAN_H_
