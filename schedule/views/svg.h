#ifndef PIPEWRIGHT_SCHEDULE_VIEWS_SVG_H_
#define PIPEWRIGHT_SCHEDULE_VIEWS_SVG_H_

#include <iosfwd>
#include <string>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"

namespace pipewright::schedule {

// A timeline as a figure: a row a rank, an axis of time, a legend, and a tooltip an action; SVG 1.1
// without scripts or outside fonts. Stages of one rank differ in shade; a compound is an F above a
// B. SENDs and RECVs that take time are lines below their rank's row. Linear in the number of
// actions.
void print_svg(const ir::Schedule& schedule, const ir::Timeline& timeline, const std::string& title,
               const std::string& unit, std::ostream& out);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VIEWS_SVG_H_
