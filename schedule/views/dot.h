#ifndef PIPEWRIGHT_SCHEDULE_VIEWS_DOT_H_
#define PIPEWRIGHT_SCHEDULE_VIEWS_DOT_H_

#include <iosfwd>

#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/simulate/event_graph.h"

namespace pipewright::schedule {

// What waits for what, for Graphviz: a cluster a rank with its actions in their order, bold lines
// for results that come from other ranks. `dot -Tsvg` draws it.
void print_dot(const ir::Schedule& schedule, const EventGraph& graph, std::ostream& out);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VIEWS_DOT_H_
