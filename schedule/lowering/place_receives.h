#ifndef PIPEWRIGHT_SCHEDULE_LOWERING_PLACE_RECEIVES_H_
#define PIPEWRIGHT_SCHEDULE_LOWERING_PLACE_RECEIVES_H_

#include <array>

#include "pipewright/ir/channel.h"
#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/tables.h"

namespace pipewright::schedule {

// Calls `use` with each RECV that brings an input of a compute. Does nothing for other actions.
template <typename Use>
void for_each_receive_of(const ir::Action& action, const ir::StageDependencies& dependencies,
                         const Use& use) {
  if (!ir::is_compute(action.kind())) return;
  for (const ir::ActionPart part : action.parts()) {
    for (const ir::StageDependencies::Need& need : dependencies.of(part)) {
      if (need.of_other_rank) use(need.receive_for(part));
    }
  }
}

// A table with one value per possible RECV of a program.
template <typename Value>
class PerReceive {
 public:
  PerReceive(const ir::Program& program, Value initial)
      : values_(program.placement, program.num_microbatches, {initial, initial}) {}

  Value& operator[](ir::ActionPart receive) {
    return values_.at(receive.stage(),
                      receive.microbatch())[receive.kind() == ir::ActionKind::kRecvB];
  }

 private:
  ir::StageMicrobatchTable<std::array<Value, 2>> values_;  // of RECV_F, of RECV_B
};

// The rows of a program with each RECV moved as late as the channel model allows: the part of
// latest_receives() for models under which RECVs can block each other. The same requirements hold.
ir::Rows move_receives_later(const ir::Program& program, ir::ChannelModel channels,
                             ir::ChannelCapacity capacity);

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

#endif  // PIPEWRIGHT_SCHEDULE_LOWERING_PLACE_RECEIVES_H_
