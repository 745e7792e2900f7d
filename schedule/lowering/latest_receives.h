#ifndef PIPEWRIGHT_SCHEDULE_LOWERING_LATEST_RECEIVES_H_
#define PIPEWRIGHT_SCHEDULE_LOWERING_LATEST_RECEIVES_H_

#include "pipewright/ir/channel.h"
#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

// Moves each RECV to the last place at which the program can still be proved to run under a channel
// model. A RECV that is posted early holds a buffer, and what is queued behind it waits. Ranks of
// stages 0 and 1, channels edge:
//
//   before  0F0 0SEND_F0 0F1 0SEND_F1            1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0
//           0RECV_B0 0B0 0RECV_B1 0B1            1F1 1B1 1SEND_B1
//   after   as it was                            1RECV_F0 1F0 1B0 1SEND_B0
//                                                1RECV_F1 1F1 1B1 1SEND_B1
//
// Just before its use is not always safe: where a rank takes results in another order than its
// neighbour sends them, the RECVs would meet the wrong SENDs; and where a queue carries both
// directions, two ranks would wait for each other's RECV.
//
// RECVs that stand together are posted together, and count as one place: what holds afterwards is
// that no RECV can be moved behind the RECVs that follow it and one action more without the program
// being refused. Under `edge` this is one arrangement, found in one pass. Under `peer` and `rank`
// RECVs stand in each other's way; there the rows are gone through from the end until nothing
// moves.
//
// `program` must be one that the verifier takes under this model and capacity, as those with
// PyTorch's receives are under each. A pure function. Under `edge` linear in the number of actions;
// else each RECV costs a search through what runs between its SEND and its use.
ir::Program latest_receives(ir::Program program, ir::ChannelModel channels,
                            ir::ChannelCapacity capacity);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_LOWERING_LATEST_RECEIVES_H_
