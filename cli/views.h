#ifndef PIPEWRIGHT_CLI_VIEWS_H_
#define PIPEWRIGHT_CLI_VIEWS_H_

#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/graph/deadlock.h"
#include "pipewright/schedule/problem/costs.h"
#include "pipewright/schedule/views/timeline_text.h"

// The views of `print`, and the only list of them: --format, the extensions of files, help and the
// printers read this table.

namespace pipewright::cli {

// What a view shows.
struct Picture {
  const ir::AnySchedule& any;
  const ir::Recording* recording = nullptr;  // of the file
  // For views that need times: when the actions run.
  schedule::Costs costs = {};
  ir::Timeline timeline = {};
  std::optional<schedule::Standstill> standstill = {};  // of a schedule that cannot run to its end
  bool is_measured = false;
  std::string title = {};            // "1F1B: 4 ranks, ...; makespan 33, bubble 27.3%"
  std::string summary = {};          // lines below a timeline
  const Picture* against = nullptr;  // drawn on the same time axis

  const ir::Schedule& schedule() const { return ir::schedule_of(any); }
  const schedule::Standstill* stops() const { return standstill ? &*standstill : nullptr; }
};

struct View {
  std::string_view name;             // for --format
  std::string_view extension = {};   // of its files, without a dot; empty for none
  std::string_view extension2 = {};  // another one, which means another view without --format
  // Whether it shows when actions run, so that costs matter. All views that do can show a schedule
  // that cannot run to its end.
  bool needs_times = false;
  bool shows_bound = false;          // the title has the lower bound
  bool has_title = true;             // the title says if times are measured; otherwise a note does
  bool loses_times = false;          // cannot store the recording of a file
  bool loses_recompute = false;      // cannot store which stages recompute
  std::string_view own_option = {};  // the option of `print` that only this view takes
  // Null for a view that is a folder of files, write_trace_folder().
  void (*print)(const Picture&, const schedule::TimelineTextOptions&, std::ostream&);
};

// In the order of help.
std::span<const View> views();
// The view of that name, or null.
const View* find_view(std::string_view name);
// The view that the extension of a file means ("out.svg", "OUT.SVG"), or null.
const View* view_of_extension(const std::string& path);

// "timeline, svg or dot": the views that need times.
std::string views_with_times();

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_VIEWS_H_
