#ifndef PIPEWRIGHT_SCHEDULE_LOWERING_PARITY_RECEIVES_H_
#define PIPEWRIGHT_SCHEDULE_LOWERING_PARITY_RECEIVES_H_

#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

// Moves each RECV to just before the compute that uses it, as PyTorch does with `defer_pp_recv`
// (_defer_recv_ops). But a rank posts its RECVs from a rank with a higher number before a SEND to
// that rank, so that of two neighbours that exchange tensors the lower one is always ready to
// receive. Ranks of stages 0 and 1:
//
//   before  0F0 0SEND_F0 0RECV_B0 0F1 0SEND_F1 0B0   1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0 1F1
//   after   0F0 0SEND_F0 0F1 0RECV_B0 0SEND_F1 0B0   1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1
//
// The RECVs of an edge may leave the order of their SENDs, and nothing proves that the result runs
// to its end: verify() finds out. The result records the policy. A pure function, linear in the
// number of actions times the RECVs that wait.
ir::Program parity_receives(ir::Program program);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_LOWERING_PARITY_RECEIVES_H_
