#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_EVENT_GRAPH_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_EVENT_GRAPH_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "pipewright/ir/channel.h"
#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

// An edge of the event graph: an action that the dependent action waits for. Actions are numbered
// along the rows, idle slots included, as in ir::Timeline.
struct Dependency {
  enum Kind : uint32_t {
    kEnd,       // starts after its end
    kOutput,    // starts after its output has arrived from another rank
    kGradient,  // starts after its input gradient has arrived from another rank
    kSend,      // a RECV depends on its SEND: it starts and ends no sooner than the SEND
  };

  uint32_t action;
  Kind kind : 4;
  uint32_t stage : 28;  // for kOutput and kGradient: the stage of `action`
};
static_assert(sizeof(Dependency) == 8);

// A schedule as a graph of actions and their dependencies, with one order in which they can run.
// It does not contain costs, so one graph serves any number of simulations.
//
// For a compute order, transfers are ideal: a compute waits for the previous compute of its rank,
// and for results of other ranks to arrive; transfers occupy nothing.
//
// For a program, the channel model of ir/channel.h holds. A SEND or RECV waits for the compute
// before it in its row and for its predecessor in its queue; a transfer occupies its queues while
// it lasts. UNSHARD, RESHARD and REDUCE_GRAD wait for the compute before them, and for their
// predecessor in a separate queue that they share, one per rank. A compute waits for its RECVs and
// for the UNSHARD of its stage.
//
// The schedule must be one that verify() accepts, except that it may deadlock. Immutable after
// construction; safe to use from any thread. Linear in the number of actions, which must be below
// 2^32.
class EventGraph {
 public:
  // Return nullopt if the schedule cannot run to its end.
  static std::optional<EventGraph> of_order(const ir::ComputeOrder& order);
  static std::optional<EventGraph> of_program(const ir::Program& program, ir::ChannelModel channels,
                                              ir::ChannelCapacity capacity);

  // The actions in an order in which they can run.
  std::span<const uint32_t> order() const { return order_; }
  // The dependencies of the action at a position of order(); they are at lower positions.
  std::span<const Dependency> dependencies(size_t position) const {
    return std::span(dependencies_)
        .subspan(first_[position], first_[position + 1] - first_[position]);
  }

 private:
  friend class EventGraphSink;
  EventGraph() = default;

  std::vector<uint32_t> order_;
  std::vector<uint64_t> first_;  // in dependencies_, by position; and the end
  std::vector<Dependency> dependencies_;
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_EVENT_GRAPH_H_
