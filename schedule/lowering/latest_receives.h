#ifndef PIPEWRIGHT_SCHEDULE_LOWERING_LATEST_RECEIVES_H_
#define PIPEWRIGHT_SCHEDULE_LOWERING_LATEST_RECEIVES_H_

#include "pipewright/ir/channel.h"
#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

// Moves each RECV to the latest position at which the program still runs to its end under the given
// channel model. A RECV that is posted early occupies a buffer and blocks the operations queued
// after it. Ranks of stages 0 and 1, channels edge:
//
//   before  0F0 0SEND_F0 0F1 0SEND_F1            1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0
//           0RECV_B0 0B0 0RECV_B1 0B1            1F1 1B1 1SEND_B1
//   after   unchanged                            1RECV_F0 1F0 1B0 1SEND_B0
//                                                1RECV_F1 1F1 1B1 1SEND_B1
//
// Placing each RECV just before its use would not always be safe. If a rank uses results in another
// order than its neighbour sends them, the RECVs would meet the wrong SENDs; and if a queue carries
// both directions, two ranks could deadlock, each blocked by its own SEND.
//
// Adjacent RECVs are posted together and form one position. In the result, moving any RECV past the
// RECVs that follow it and one more action makes the program invalid. Under
// `edge` there is exactly one such arrangement, unless there are WAIT_SENDs; under `peer` and
// `rank`, where RECVs can block each other, it is one of several.
//
// verify() must accept the program under this model and capacity; it accepts every program with
// PyTorch's receives. The result records receives, channels and capacity in its lowering. A pure
// function. Linear in the number of actions under `edge`; otherwise each RECV costs a search
// through the actions that run between its SEND and its use.
ir::Program latest_receives(ir::Program program, ir::ChannelModel channels,
                            ir::ChannelCapacity capacity);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_LOWERING_LATEST_RECEIVES_H_
