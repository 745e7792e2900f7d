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
#include <vector>

#include "pipewright/schedule/graph/edge_transfers.h"
#include "pipewright/schedule/graph/turns.h"
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
  Turns turns(program.rows.size());
  std::vector<RestOfRow> rest = whole_rows(program.rows);
  bool valid = true, stops_at_wait = false;
  size_t sends = 0, waits = 0;
  const auto go_on = [&](size_t rank) {
    const PassedActions::Marks marks = passed.marks();
    RestOfRow row = rest[rank];
    const ir::Action* const end = row.end_of_turn();
    bool row_valid = true;
    for (; row.next != end; ++row.next, ++row.number) {
      const ir::Action action = *row.next;
      if (ir::is_compute(action.kind()) && transfers.awaits(action)) break;
      if (ir::is_wait_send(action.kind())) {
        if (transfers.is_pending(ir::awaited_by(action.parts()[0]))) {
          stops_at_wait = true;
          break;
        }
        ++waits;
      }
      row_valid &= marks.pass(action);
      if (!ir::is_transfer(action.kind())) continue;
      const ir::ActionPart part = action.parts()[0];
      const bool is_send = ir::is_send(part.kind());
      sends += is_send ? 1 : 0;
      if (transfers.post(part, row.number) != EdgeTransfers::kNone && (is_send || stops_at_wait))
        turns.wake(transfers.peer_of(part));
    }
    rest[rank] = row;
    valid &= row_valid;
    fetch_ahead(row.next);
    return Turns::stop_of(row, end);
  };
  return turns.run(go_on) && valid && transfers.all_matched() && passed.is_complete() &&
         (waits == 0 || waits == sends);
}

}  // namespace pipewright::schedule
