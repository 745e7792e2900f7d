#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_EVENT_GRAPH_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_EVENT_GRAPH_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "pipewright/ir/channel.h"
#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

// What must end before an action can start. Actions are numbered along the rows, idle slots
// included, as in ir::Timeline.
struct Before {
  // How the action that waits is bound to it: starts after its end; after its output, or input
  // gradient, has come from another rank; or, of a RECV to its SEND, starts and ends no sooner.
  enum Bond : uint32_t { kEnd, kOutput, kGradient, kSend };

  uint32_t action;
  Bond bond : 4;
  uint32_t stage : 28;  // of kOutput and kGradient: the stage that made it
};
static_assert(sizeof(Before) == 8);

// A schedule as a graph of actions that wait for each other, in an order in which they can run.
// What the actions cost is not in it: one graph serves any number of simulations.
//
// Of an order, transfers are ideal: a compute waits for its rank's compute before it, and for
// results of other ranks to come; nothing else occupies anything.
// Of a program, by the channel model of ir/channel.h, a SEND, a RECV, and an UNSHARD, RESHARD or
// REDUCE_GRAD wait for the compute before them in their row, and for what is ahead of them in their
// queue; the data-parallel actions of a rank share one queue, beside those of the channel model. A
// transfer occupies its queues while it lasts. A compute waits for its RECVs and for the UNSHARD of
// its stage.
//
// The schedule must be one that the verifier takes, except that it may deadlock. Not changed once
// built; linear in the number of actions, of which there are less than 2^32.
class EventGraph {
 public:
  // None if the schedule cannot be run to its end.
  static std::optional<EventGraph> of_order(const ir::ComputeOrder& order);
  static std::optional<EventGraph> of_program(const ir::Program& program, ir::ChannelModel channels,
                                              ir::ChannelCapacity capacity);

  // Actions in an order in which they can run.
  std::span<const uint32_t> order() const { return order_; }
  // What must end before the one at a position of order().
  std::span<const Before> before(size_t position) const {
    return std::span(before_).subspan(first_before_[position],
                                      first_before_[position + 1] - first_before_[position]);
  }

 private:
  friend class EventGraphSink;
  EventGraph() = default;

  std::vector<uint32_t> order_;
  std::vector<uint64_t> first_before_;  // by position, and the end
  std::vector<Before> before_;
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_EVENT_GRAPH_H_
