// Valid schedules are the common case, and deciding that one is valid takes less than finding and
// wording what is wrong. WorkIndex and the other checks look for errors only if these find one.
//
// A program whose queues are one per peer and direction is decided by one walk along all of its
// rows. A rank goes on until a compute awaits an input that has not been sent, or a WAIT a SEND
// that has not been received, and the other end wakes it. So the walk posts each SEND and RECV
// after the computes and WAITs before it, and passes each of those after the transfers that it
// waits for: if all ranks reach their ends, that is an order in which the program runs, whatever
// the capacity. A walk that stops, or in which a SEND and a RECV do not meet, proves nothing here;
// ChannelGraph decides then. Linear in the number of actions.
#include "pipewright/ir/walk.h"
#include "pipewright/schedule/graph/edge_transfers.h"
#include "pipewright/schedule/verify/passed_actions.h"
#include "pipewright/schedule/verify/verify_checks.h"

namespace pipewright::schedule {
bool is_complete_in_order(const ir::Schedule& schedule, ir::Level level) {
  if (!PassedActions::has_enough(schedule)) return false;
  PassedActions passed(schedule, level);
  const PassedActions::Marks marks = passed.marks();
  bool valid = true;
  for (const ir::Row& row : schedule.rows) {
    for (const ir::Action& action : row) valid &= marks.pass(action);
    if (!valid) return false;
  }
  return passed.is_complete();
}

bool runs_on_edges(const ir::Program& program) {
  if (!PassedActions::has_enough(program) || !EdgeTransfers::fit(program)) return false;
  EdgeTransfers transfers(program);
  PassedActions passed(program, ir::Level::kComputeComms);
  const PassedActions::Marks marks = passed.marks();
  const bool awaits_sends = (ir::kinds_in(program.rows) & ir::kSendWaits) != 0;
  bool valid = true;
  size_t sends = 0, waits = 0;
  ir::Walk walk(program.rows);
  const auto pass = [&](size_t, const ir::Action& action, uint32_t number) {
    const ir::ActionKind kind = action.kind();
    if (ir::is_compute(kind) && transfers.awaits(action)) return false;
    if (ir::is_wait_send(kind)) {
      if (transfers.is_pending(ir::awaited_by(action.parts()[0]))) return false;
      ++waits;
    }
    valid &= marks.pass(action);
    if (!ir::is_transfer(kind)) return true;
    const ir::ActionPart part = action.parts()[0];
    sends += ir::is_send(kind) ? 1 : 0;
    if (transfers.post(part, number) != EdgeTransfers::kNone && (ir::is_send(kind) || awaits_sends))
      walk.wake(transfers.peer_of(part));
    return true;
  };
  return walk.run(pass) && valid && transfers.all_matched() && passed.is_complete() &&
         (waits == 0 || waits == sends);
}

}  // namespace pipewright::schedule
