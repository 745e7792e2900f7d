#ifndef PIPEWRIGHT_SCHEDULE_VIEWS_SVG_H_
#define PIPEWRIGHT_SCHEDULE_VIEWS_SVG_H_

#include <iosfwd>
#include <string>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/graph/deadlock.h"

namespace pipewright::schedule {

// Prints a timeline as an SVG 1.1 figure without scripts or external fonts: one row per rank, a
// time axis in `unit`, a legend, and a tooltip per action. The stages of a rank differ in shade; a
// compound is drawn as its first part above its second. SENDs, RECVs and data-parallel actions with
// a nonzero duration are thin bars below the row of their rank. `standstill`, of a schedule that
// cannot run to its end, adds a dashed box where a rank stops, with the first of its actions that
// never runs, and arrows from box to box: who waits for whom. Linear in the number of actions.
void print_svg(const ir::Schedule& schedule, const ir::Timeline& timeline, const std::string& title,
               const std::string& unit, std::ostream& out, const Standstill* standstill = nullptr);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VIEWS_SVG_H_
