#ifndef PIPEWRIGHT_SCHEDULE_LOWERING_ADD_WAIT_SEND_H_
#define PIPEWRIGHT_SCHEDULE_LOWERING_ADD_WAIT_SEND_H_

#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

// Adds a WAIT_SEND_F or WAIT_SEND_B for each SEND, where PyTorch 2.15 waits (_add_wait_send). A
// SEND_F is awaited after the B or I of its stage and microbatch, which shows that the next rank
// has used the output; all others at the end of the row, in the order of their SENDs. No wait then
// holds up its rank. Ranks of stages 0 and 1:
//
//   before  0F0 0SEND_F0 0RECV_B0 0B0                1RECV_F0 1F0 1B0 1SEND_B0
//   after   0F0 0SEND_F0 0RECV_B0 0B0 0WAIT_SEND_F0  1RECV_F0 1F0 1B0 1SEND_B0 1WAIT_SEND_B0
//
// A pure function, linear in the number of actions.
ir::Program add_wait_send(ir::Program program);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_LOWERING_ADD_WAIT_SEND_H_
