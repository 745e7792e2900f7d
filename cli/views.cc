#include "pipewright/cli/views.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <ostream>
#include <vector>

#include "pipewright/ir/text/csv.h"
#include "pipewright/ir/text/plan.h"
#include "pipewright/ir/text/schedule_json.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/views/dot.h"
#include "pipewright/schedule/views/html.h"
#include "pipewright/schedule/views/perfetto.h"
#include "pipewright/schedule/views/svg.h"
#include "pipewright/schedule/views/table.h"
#include "pipewright/schedule/views/trace.h"

namespace pipewright::cli {
namespace {

using Options = schedule::TimelineTextOptions;

void print_timeline(const Picture& one, const Options& options, std::ostream& out) {
  Options with_standstill = options;
  with_standstill.standstill = one.stops();
  schedule::print_timeline(one.schedule(), one.timeline, with_standstill, out);
  out << one.summary;
}

void print_svg(const Picture& one, const Options&, std::ostream& out) {
  schedule::print_svg(one.schedule(), one.timeline, one.title, one.costs.unit, out, one.stops());
}

void print_page(const Picture& first, const Options&, std::ostream& out) {
  std::vector<schedule::HtmlRun> runs;
  for (const Picture* one = &first; one != nullptr; one = one->against)
    runs.push_back({one->title, one->schedule(), one->costs, schedule::graph_of(one->any),
                    one->timeline, one->stops(), one->is_measured});
  schedule::print_html(runs, out);
}

void print_trace(const Picture& one, const Options&, std::ostream& out) {
  schedule::print_trace(one.schedule(), one.costs, one.timeline, out, one.stops());
}

void print_perfetto(const Picture& one, const Options&, std::ostream& out) {
  schedule::print_perfetto(one.schedule(), one.costs, one.timeline, out, one.stops());
}

void print_dot(const Picture& one, const Options&, std::ostream& out) {
  schedule::print_dot(one.schedule(), schedule::graph_of(one.any), out, one.stops());
}

void print_table(const Picture& one, const Options& options, std::ostream& out) {
  schedule::print_table(one.schedule(), {options.width, options.color}, out);
}

void print_csv(const Picture& one, const Options&, std::ostream& out) {
  ir::print_csv(one.schedule().rows, out);
}

void print_plan(const Picture& one, const Options&, std::ostream& out) {
  ir::print_plan(one.any, out);
}

void print_json(const Picture& one, const Options&, std::ostream& out) {
  if (one.recording == nullptr) return ir::print_json(one.any, out);
  ir::print_json(one.any, *one.recording, out);
}

constexpr View kViews[] = {
    {.name = "timeline",
     .extension = "timeline",
     .needs_times = true,
     .own_option = "--comms",
     .print = print_timeline},
    {.name = "svg", .extension = "svg", .needs_times = true, .print = print_svg},
    {.name = "html",
     .extension = "html",
     .needs_times = true,
     .shows_bound = true,
     .own_option = "--against",
     .print = print_page},
    {.name = "trace",
     .extension = "trace",
     .extension2 = "json",  // which its viewers expect
     .needs_times = true,
     .has_title = false,
     .print = print_trace},
    {.name = "pftrace",
     .extension = "pftrace",
     .needs_times = true,
     .has_title = false,
     .print = print_perfetto},
    {.name = "kineto",
     .extension = "kineto",
     .needs_times = true,
     .has_title = false,
     .print = nullptr},
    {.name = "dot", .extension = "dot", .needs_times = true, .print = print_dot},
    {.name = "table", .print = print_table},
    {.name = "csv",
     .extension = "csv",
     .loses_times = true,
     .loses_recompute = true,
     .print = print_csv},
    {.name = "plan", .extension = "plan", .loses_times = true, .print = print_plan},
    {.name = "json", .extension = "json", .print = print_json},
};

}  // namespace

std::span<const View> views() { return kViews; }

const View* find_view(std::string_view name) {
  const auto found = std::ranges::find(kViews, name, &View::name);
  return found == std::end(kViews) ? nullptr : found;
}

const View* view_of_extension(const std::string& path) {
  std::string extension = std::filesystem::path(path).extension().string();
  if (extension.empty()) return nullptr;
  extension.erase(0, 1);
  for (char& letter : extension)
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  const auto found = std::ranges::find(kViews, std::string_view(extension), &View::extension);
  return extension.empty() || found == std::end(kViews) ? nullptr : found;
}

std::string views_with_times() {
  std::vector<std::string_view> names;
  for (const View& view : kViews) {
    if (view.needs_times) names.push_back(view.name);
  }
  const std::string_view last = names.back();
  names.pop_back();
  return fmt::format("{} or {}", fmt::join(names, ", "), last);
}

}  // namespace pipewright::cli
