#ifndef PIPEWRIGHT_SCHEDULE_LOWERING_ADD_SEND_RECV_H_
#define PIPEWRIGHT_SCHEDULE_LOWERING_ADD_SEND_RECV_H_

#include <optional>

#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

// Adds a SEND after each F, B or I whose result another rank needs, and the matching RECV on that
// rank. Ranks of stages 0 and 1:
//
//   before  0F0 0F1 0B0 0B1                      1F0 1B0 1F1 1B1
//   after   0F0 0SEND_F0 0F1 0SEND_F1            1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0
//           0RECV_B0 0B0 0RECV_B1 0B1            1F1 1B1 1SEND_B1
//
// SENDs and RECVs are placed as by PyTorch 2.11 (_add_send_recv): the ranks take turns of one
// action each, and each RECV is appended to its rank's row together with its SEND. All ranks thus
// follow one global order of transfers, so the program cannot deadlock under any channel model. The
// drawback: a RECV may be posted long before it is needed, and blocks the operations queued after
// it.
//
// Returns nullopt if the order cannot run to its end (check_can_run() says why). An idle slot takes
// a turn and is dropped. A pure function, linear in the number of actions and idle slots.
std::optional<ir::Program> add_send_recv(ir::Program program);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_LOWERING_ADD_SEND_RECV_H_
