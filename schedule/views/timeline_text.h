#ifndef PIPEWRIGHT_SCHEDULE_VIEWS_TIMELINE_TEXT_H_
#define PIPEWRIGHT_SCHEDULE_VIEWS_TIMELINE_TEXT_H_

#include <cstddef>
#include <iosfwd>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"

namespace pipewright::schedule {

struct TimelineTextOptions {
  size_t width = 0;  // columns of a line, at least one for time; 0 for as many as labels want
  bool color =
      false;  // ANSI colours by kind of action; letters then show the kind only where there is room
  bool comms = false;  // rows of SENDs, RECVs and data-parallel actions below each rank
};

// A timeline as text, a line a rank and time to the right:
//
//   rank 0  F0 F1 F2          B0--  F3 B1--
//   rank 1     F0 F1       B0--  F2 B1--
//
// A cell shows kind and microbatch, with the stage in front where a rank has several, or what of
// it has room. It fits the width: where time has more steps than there are columns, an action may
// be one letter, and several may share it. Linear in the number of actions and columns.
void print_timeline(const ir::Schedule& schedule, const ir::Timeline& timeline,
                    const TimelineTextOptions& options, std::ostream& out);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VIEWS_TIMELINE_TEXT_H_
