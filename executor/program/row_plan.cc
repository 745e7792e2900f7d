#include "pipewright/executor/program/row_plan.h"

#include <set>
#include <utility>

#include "pipewright/ir/action_kind.h"
#include "pipewright/ir/dependencies.h"

namespace pipewright::executor {

using ir::ActionKind;

RowPlan plan_row(const ir::Row& row) {
  RowPlan plan;
  plan.has_backward = ir::has_backward(row);
  for (size_t step = 0; step < row.size(); ++step) {
    if (row[step].is_idle()) continue;
    plan.actions.push_back({row[step], static_cast<int>(step), false});
    for (const ir::ActionPart part : row[step].parts()) {
      plan.has_residency = plan.has_residency || part.kind() == ActionKind::kUnshard ||
                           part.kind() == ActionKind::kReshard;
    }
  }
  std::set<int> open;  // stages with a later REDUCE_GRAD and no B or W before it yet
  for (auto planned = plan.actions.rbegin(); planned != plan.actions.rend(); ++planned) {
    for (const ir::ActionPart part : planned->action.parts()) {
      if (part.kind() == ActionKind::kReduceGrad) open.insert(part.stage());
      if (ir::completes_backward(part.kind()))
        planned->last_backward = open.erase(part.stage()) > 0;
    }
  }
  return plan;
}

std::vector<std::pair<int, int>> edges_of(const ir::Program& program) {
  std::set<std::pair<int, int>> edges;
  for (const ir::Row& row : program.rows) {
    for (const ir::Action& action : row) {
      if (!ir::is_transfer(action.kind())) continue;
      if (const auto transfer = ir::partner_of(action.parts()[0], program.placement))
        edges.insert({transfer->from, transfer->to});
    }
  }
  return {edges.begin(), edges.end()};
}

}  // namespace pipewright::executor
