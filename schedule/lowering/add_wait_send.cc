#include "pipewright/schedule/lowering/add_wait_send.h"

#include <algorithm>
#include <utility>

#include "pipewright/ir/stage_microbatch_table.h"

namespace pipewright::schedule {

ir::Program add_wait_send(ir::Program program) {
  using ir::ActionKind;
  // Whether a SEND_F is pending.
  ir::StageMicrobatchTable<uint8_t> pending(program.placement, program.num_microbatches);
  ir::Row row;
  for (ir::Row& actions : program.rows) {
    row.clear();
    for (const ir::Action& action : actions) {
      row.push_back(action);
      for (const ir::ActionPart part : action.parts()) {
        if (part.kind() == ActionKind::kSendF) pending.at(part.stage(), part.microbatch()) = 1;
        if (ir::gives_input_gradient(part.kind()) &&
            std::exchange(pending.at(part.stage(), part.microbatch()), 0) != 0)
          row.emplace_back(ActionKind::kWaitSendF, part.stage(), part.microbatch());
      }
    }
    for (const ir::Action& action : actions) {
      if (!ir::is_send(action.kind())) continue;
      const ir::ActionPart send = action.parts()[0];
      if (send.kind() == ActionKind::kSendB || pending.at(send.stage(), send.microbatch()) != 0)
        row.emplace_back(ir::wait_for(send));
    }
    actions = row;
  }
  return program;
}

}  // namespace pipewright::schedule
