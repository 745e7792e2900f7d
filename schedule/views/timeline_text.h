#ifndef PIPEWRIGHT_SCHEDULE_VIEWS_TIMELINE_TEXT_H_
#define PIPEWRIGHT_SCHEDULE_VIEWS_TIMELINE_TEXT_H_

#include <cstddef>
#include <iosfwd>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/graph/deadlock.h"

namespace pipewright::schedule {

struct TimelineTextOptions {
  size_t width = 0;  // characters per line; 0 for as many as the labels need
  // ANSI colours by kind of action. Labels then omit the kind if the width does not suffice.
  bool color = false;
  bool comms = false;  // rows of SENDs, RECVs and data-parallel actions below each rank
  // For a schedule that cannot run to its end: a row that stops ends with `!` and the first of its
  // actions that never runs. Null for a schedule that runs.
  const Standstill* standstill = nullptr;
};

// Prints a timeline as text, one line per rank with time to the right:
//
//   rank 0  F0 F1 F2          B0--  F3 B1--
//   rank 1     F0 F1       B0--  F2 B1--
//
// A cell shows kind and microbatch, or slice (microbatch_text() in table.h), preceded by the stage
// if a rank has several stages; less if the width does not suffice. To fit the width (with at least
// one column for time), an action may shrink to one letter, and several may share a column. Linear
// in the number of actions and columns.
void print_timeline(const ir::Schedule& schedule, const ir::Timeline& timeline,
                    const TimelineTextOptions& options, std::ostream& out);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VIEWS_TIMELINE_TEXT_H_
