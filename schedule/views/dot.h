#ifndef PIPEWRIGHT_SCHEDULE_VIEWS_DOT_H_
#define PIPEWRIGHT_SCHEDULE_VIEWS_DOT_H_

#include <iosfwd>

#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/graph/channel_graph.h"
#include "pipewright/schedule/graph/deadlock.h"

namespace pipewright::schedule {

// Prints the channel graph of a schedule for Graphviz (`dot -Tsvg`): one cluster per rank with its
// actions in order, one edge per dependency, bold where a result comes from another rank.
// `standstill`, of a schedule that cannot run to its end, pales the actions that run, dashes the
// outline of those that never do, and adds the wait-for edges, red on the error's cycle.
void print_dot(const ir::Schedule& schedule, const ChannelGraph& graph, std::ostream& out,
               const Standstill* standstill = nullptr);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VIEWS_DOT_H_
