#ifndef PIPEWRIGHT_SCHEDULE_VIEWS_TRACE_H_
#define PIPEWRIGHT_SCHEDULE_VIEWS_TRACE_H_

#include <iosfwd>
#include <string_view>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/graph/deadlock.h"
#include "pipewright/schedule/problem/costs.h"

namespace pipewright::schedule {

// Prints a timeline as Chrome trace events, a JSON object that ui.perfetto.dev and chrome://tracing
// open: one process per rank with tracks for compute, send, receive and data-parallel actions
// (trace_tracks.h), an arrow from each SEND to its RECV, and counters of live activations and, if
// the costs have sizes, of bytes. Times are in microseconds: the units "s", "ms", "us" and "ns" are
// converted, and any other unit counts as a millisecond. `standstill`, of a schedule that cannot
// run to its end, leaves out the actions that never run, and adds an instant event where each rank
// stops. Linear in the number of actions.
void print_trace(const ir::Schedule& schedule, const Costs& costs, const ir::Timeline& timeline,
                 std::ostream& out, const Standstill* standstill = nullptr);

// The unit of times in a trace: 1e6 for "s".
double microseconds_per_unit(std::string_view unit);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VIEWS_TRACE_H_
