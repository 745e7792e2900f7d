#include "pipewright/schedule/lowering/add_reduce_grad.h"

#include <utility>
#include <vector>

#include "pipewright/ir/check.h"

namespace pipewright::schedule {

ir::Program add_reduce_grad(ir::Program program, std::optional<int> every) {
  PW_CHECK(!every || *every >= 1, "a REDUCE_GRAD comes after at least one microbatch");
  program.lowering.reduce_every = every;
  std::vector<int> gradients(static_cast<size_t>(program.placement.num_stages()));  // B or W so far
  // A REDUCE_GRAD to insert after the action at this step.
  struct Reduction {
    size_t step;
    int stage;
  };
  std::vector<Reduction> reductions;
  for (ir::Row& row : program.rows) {
    reductions.clear();
    for (size_t step = 0; step < row.size(); ++step) {
      for (const ir::ActionPart part : row[step].parts()) {
        if (!ir::completes_backward(part.kind())) continue;
        const int count = ++gradients[static_cast<size_t>(part.stage())];
        if (count == program.num_microbatches || (every && count % *every == 0))
          reductions.push_back({step, part.stage()});
      }
    }
    // From the end, so that each action moves once and the row is not rebuilt for a few insertions.
    size_t from = row.size();
    row.resize(row.size() + reductions.size());
    size_t to = row.size();
    for (auto reduction = reductions.rbegin(); reduction != reductions.rend(); ++reduction) {
      while (from > reduction->step + 1) row[--to] = row[--from];
      row[--to] = ir::Action(ir::ActionKind::kReduceGrad, reduction->stage);
    }
  }
  return program;
}

}  // namespace pipewright::schedule
