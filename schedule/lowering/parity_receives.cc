#include "pipewright/schedule/lowering/parity_receives.h"

#include <algorithm>
#include <vector>

#include "pipewright/ir/dependencies.h"
#include "pipewright/schedule/lowering/receives_of.h"

namespace pipewright::schedule {

ir::Program parity_receives(ir::Program program) {
  const ir::StageDependencies dependencies(program.placement);
  ir::Row row, waiting;  // RECVs that are not posted yet
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    row.clear();
    waiting.clear();
    const auto post_if = [&](const auto& is_due) {
      std::erase_if(waiting, [&](const ir::Action& receive) {
        if (!is_due(receive.parts()[0])) return false;
        row.push_back(receive);
        return true;
      });
    };
    for (const ir::Action& action : program.rows[rank]) {
      if (ir::is_receive(action.kind())) {
        waiting.push_back(action);
        continue;
      }
      if (ir::is_send(action.kind())) {
        const int to = ir::partner_of(action.parts()[0], program.placement)->to;
        if (rank < static_cast<size_t>(to)) {
          post_if([&](ir::ActionPart receive) {
            return ir::partner_of(receive, program.placement)->from == to;
          });
        }
      }
      for_each_receive_of(action, dependencies, [&](ir::ActionPart needed) {
        post_if([&](ir::ActionPart receive) { return receive == needed; });
      });
      row.push_back(action);
    }
    program.rows[rank] = row;
  }
  program.lowering.receives = ir::Receives::kParity;
  return program;
}

}  // namespace pipewright::schedule
