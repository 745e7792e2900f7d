#ifndef PIPEWRIGHT_SCHEDULE_VIEWS_PERFETTO_H_
#define PIPEWRIGHT_SCHEDULE_VIEWS_PERFETTO_H_

#include <iosfwd>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/graph/deadlock.h"
#include "pipewright/schedule/problem/costs.h"

namespace pipewright::schedule {

// Prints a timeline in Perfetto's own format, a protocol buffer (perfetto/trace/trace.proto): what
// print_trace() prints, a fifth of its size, with times in nanoseconds. Each rank is a process,
// with the tracks of trace.h. Times are converted as by print_trace(). Linear in the number
// of actions, but for sorting.
void print_perfetto(const ir::Schedule& schedule, const Costs& costs, const ir::Timeline& timeline,
                    std::ostream& out, const Standstill* standstill = nullptr);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VIEWS_PERFETTO_H_
