#ifndef PIPEWRIGHT_SCHEDULE_LOWERING_RECEIVE_MOVER_H_
#define PIPEWRIGHT_SCHEDULE_LOWERING_RECEIVE_MOVER_H_

#include "pipewright/ir/channel.h"
#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

// The rows of a program with each RECV moved as late as the channel model allows: the part of
// latest_receives() for models under which RECVs can block each other. The same requirements hold.
ir::Rows move_receives_later(const ir::Program& program, ir::ChannelModel channels,
                             ir::ChannelCapacity capacity);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_LOWERING_RECEIVE_MOVER_H_
