#ifndef PIPEWRIGHT_SCHEDULE_LOWERING_LATEST_RECEIVES_H_
#define PIPEWRIGHT_SCHEDULE_LOWERING_LATEST_RECEIVES_H_

#include "pipewright/ir/channel.h"
#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

// Moves each RECV to the latest position at which the program can still be proved to run under a
// channel model. A RECV that is posted early holds a buffer, and blocks what is queued after it.
// Ranks of stages 0 and 1, channels edge:
//
//   before  0F0 0SEND_F0 0F1 0SEND_F1            1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0
//           0RECV_B0 0B0 0RECV_B1 0B1            1F1 1B1 1SEND_B1
//   after   unchanged                            1RECV_F0 1F0 1B0 1SEND_B0
//                                                1RECV_F1 1F1 1B1 1SEND_B1
//
// Just before its use is not always safe: where a rank takes results in another order than its
// neighbour sends them, the RECVs would meet the wrong SENDs; and where a queue carries both
// directions, two ranks could deadlock on each other's RECV.
//
// Adjacent RECVs are posted together and form one position. Afterwards no RECV can be moved past
// the RECVs that follow it and one more action without the verifier refusing the program. Under
// `edge` there is exactly one such arrangement; under `peer` and `rank`, where RECVs can block each
// other, it is one of several.
//
// The program must be one that verify() accepts under this model and capacity, as every program
// with PyTorch's receives is. It records receives, channels and capacity in its lowering. A pure
// function. Linear in the number of actions under `edge`; else each RECV costs a search through
// what runs between its SEND and its use.
ir::Program latest_receives(ir::Program program, ir::ChannelModel channels,
                            ir::ChannelCapacity capacity);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_LOWERING_LATEST_RECEIVES_H_
