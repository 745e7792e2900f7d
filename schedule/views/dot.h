#ifndef PIPEWRIGHT_SCHEDULE_VIEWS_DOT_H_
#define PIPEWRIGHT_SCHEDULE_VIEWS_DOT_H_

#include <iosfwd>

#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/channel_graph.h"

namespace pipewright::schedule {

// Prints the channel graph of a schedule for Graphviz (`dot -Tsvg`): one cluster per rank with its
// actions in order, one edge per dependency, bold where a result comes from another rank.
void print_dot(const ir::Schedule& schedule, const ChannelGraph& graph, std::ostream& out);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VIEWS_DOT_H_
