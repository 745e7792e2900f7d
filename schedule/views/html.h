#ifndef PIPEWRIGHT_SCHEDULE_VIEWS_HTML_H_
#define PIPEWRIGHT_SCHEDULE_VIEWS_HTML_H_

#include <iosfwd>
#include <span>
#include <string>
#include <string_view>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/graph/channel_graph.h"
#include "pipewright/schedule/graph/deadlock.h"
#include "pipewright/schedule/problem/costs.h"

namespace pipewright::schedule {

// The page of html.h, with `@DATA@` where the data belongs: viewer/page.html with the scripts
// beside it, put together by the build.
extern const std::string_view kViewerPage;

// A schedule with its times, predicted or measured.
struct HtmlRun {
  std::string title;  // "ZBV: 4 ranks, ...", shown above the picture
  const ir::Schedule& schedule;
  const Costs& costs;  // for the memory curve and the unit
  ChannelGraph graph;  // what each action waits for
  const ir::Timeline& timeline;
  const Standstill* standstill = nullptr;  // of a schedule that cannot run to its end
  bool is_measured = false;  // its actions do not start as soon as they can, and have no slack
};

// Prints runs as one interactive HTML page, which needs neither a network nor other files: a row
// per rank, lanes of transfers and data-parallel actions, and a memory curve; zoom, drag, search;
// for each action why it starts when it does, what it waits for, what waits for it, and its slack.
// Two runs are drawn on one time axis, the ranks of the first above those of the second. Linear in
// the number of actions, O(n log n) in those of a rank; about 30 bytes per action.
void print_html(std::span<const HtmlRun> runs, std::ostream& out);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VIEWS_HTML_H_
