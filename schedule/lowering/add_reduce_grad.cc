#include "pipewright/schedule/lowering/add_reduce_grad.h"

#include <utility>
#include <vector>

#include "pipewright/ir/check.h"

namespace pipewright::schedule {

ir::Program add_reduce_grad(ir::Program program, std::optional<int> every, ReduceWaits waits) {
  PW_CHECK(!every || *every >= 1, "a REDUCE_GRAD comes after at least one microbatch");
  program.lowering.reduce_every = every;
  std::vector<int> gradients(static_cast<size_t>(program.placement.num_stages()));  // B or W so far
  // An action to insert after the one at this step.
  struct Insertion {
    size_t step;
    ir::Action action;
  };
  std::vector<Insertion> insertions;
  for (ir::Row& row : program.rows) {
    insertions.clear();
    std::optional<int> pending;  // a stage
    const auto wait = [&](size_t step, int stage) {
      insertions.push_back({step, {ir::ActionKind::kWaitReduceGrad, stage}});
    };
    for (size_t step = 0; step < row.size(); ++step) {
      for (const ir::ActionPart part : row[step].parts()) {
        if (!ir::completes_backward(part.kind())) continue;
        const int count = ++gradients[static_cast<size_t>(part.stage())];
        if (count != program.num_microbatches && !(every && count % *every == 0)) continue;
        if (pending) wait(step, *pending);
        insertions.push_back({step, {ir::ActionKind::kReduceGrad, part.stage()}});
        if (waits == ReduceWaits::kAtOnce) wait(step, part.stage());
        if (waits == ReduceWaits::kDeferred) pending = part.stage();
      }
    }
    if (pending) wait(row.size() - 1, *pending);
    // From the end, so that each action moves once and the row is not rebuilt for a few insertions.
    size_t from = row.size();
    row.resize(row.size() + insertions.size());
    size_t to = row.size();
    for (auto one = insertions.rbegin(); one != insertions.rend(); ++one) {
      while (from > one->step + 1) row[--to] = row[--from];
      row[--to] = one->action;
    }
  }
  return program;
}

}  // namespace pipewright::schedule
