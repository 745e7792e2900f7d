#ifndef PIPEWRIGHT_SCHEDULE_LOWERING_ADD_SEND_RECV_H_
#define PIPEWRIGHT_SCHEDULE_LOWERING_ADD_SEND_RECV_H_

#include <optional>
#include <vector>

#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

// A rank that cannot go on.
struct StuckRank {
  int rank;
  ir::Action action;  // the next one
  ir::Need waits_for;
};

// Adds a SEND behind each F, B or I whose result another rank needs, and the RECV there. Ranks of
// stages 0 and 1:
//
//   before  0F0 0F1 0B0 0B1                      1F0 1B0 1F1 1B1
//   after   0F0 0SEND_F0 0F1 0SEND_F1            1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0
//           0RECV_B0 0B0 0RECV_B1 0B1            1F1 1B1 1SEND_B1
//
// The order is PyTorch 2.11's (_add_send_recv): the ranks take turns, one action a turn, and each
// RECV is posted at the moment at which its SEND is. All pairs stand in one order that every rank
// keeps to, so that no channel model can deadlock; but a RECV stands long before it is needed, and
// what is posted behind it waits.
//
// None if the order cannot be run to its end: then `stuck` has what each rank that is left waits
// for. Idle slots cost a turn and are dropped. A pure function, linear in the number of actions and
// idle turns.
std::optional<ir::Program> add_send_recv(ir::Program program, std::vector<StuckRank>* stuck);

// An error for each of them, with the place of the action in `order`, from which the program was
// made.
void report_stuck(const std::vector<StuckRank>& stuck, const ir::ComputeOrder& order,
                  ir::Diagnostics* diagnostics);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_LOWERING_ADD_SEND_RECV_H_
