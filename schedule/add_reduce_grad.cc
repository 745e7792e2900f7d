#include "schedule/add_reduce_grad.h"

#include <utility>
#include <vector>

#include "ir/check.h"

namespace pipewright::schedule {

ir::Program add_reduce_grad(ir::Program program, std::optional<int> every) {
  PW_CHECK(!every || *every >= 1, "a reduction comes after one microbatch at least");
  program.lowering.reduce_every = every;
  std::vector<int> gradients(static_cast<size_t>(program.placement.num_stages()));  // B or W so far
  for (ir::Row& row : program.rows) {
    ir::Row built;
    built.reserve(row.size() + row.size() / 16 + 4);
    for (const ir::Action& action : row) {
      built.push_back(action);
      for (const ir::ActionPart part : action.parts()) {
        if (part.kind() != ir::ActionKind::kBackward &&
            part.kind() != ir::ActionKind::kBackwardWeight)
          continue;
        const int count = ++gradients[static_cast<size_t>(part.stage())];
        if (count == program.num_microbatches || (every && count % *every == 0)) {
          built.emplace_back(ir::ActionKind::kReduceGrad, part.stage());
        }
      }
    }
    row = std::move(built);
  }
  return program;
}

}  // namespace pipewright::schedule
