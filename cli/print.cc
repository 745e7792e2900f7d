#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/files.h"
#include "pipewright/cli/input.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/cli/simulation.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/read.h"
#include "pipewright/ir/text/schedule_json.h"
#include "pipewright/schedule/views/dot.h"
#include "pipewright/schedule/views/html.h"
#include "pipewright/schedule/views/perfetto.h"
#include "pipewright/schedule/views/svg.h"
#include "pipewright/schedule/views/table.h"
#include "pipewright/schedule/views/timeline_text.h"
#include "pipewright/schedule/views/trace.h"

namespace pipewright::cli {
namespace {

// Prints a schedule in a format that needs no times: a file format or the table. Returns false for
// other formats.
bool print_as(const std::string& format, const ir::AnySchedule& schedule,
              const schedule::TableOptions& table, std::ostream& out) {
  if (format == "table") {
    schedule::print_table(ir::schedule_of(schedule), table, out);
    return true;
  }
  for (const ir::FormatInfo& row : ir::formats()) {
    if (format != row.name) continue;
    row.print(schedule, out);
    return true;
  }
  return false;
}

// A schedule as JSON with its recording, and otherwise like print_as().
bool print_with_recording(const std::string& format, const Input& input,
                          const schedule::TableOptions& table, std::ostream& out) {
  if (!input.compiled.recording || format != ir::info(ir::Format::kJson).name)
    return print_as(format, input.any(), table, out);
  ir::print_json(input.any(), *input.compiled.recording, out);
  return true;
}

// "1F1B: 4 ranks, 4 stages, 8 microbatches; makespan 33, bubble 27.3%"
std::string title_of(const Input& input, const Simulation& simulation, bool is_measured) {
  const ir::Schedule& schedule = input.schedule();
  const std::string unit = simulation.costs.unit.empty() ? "" : " " + simulation.costs.unit;
  return fmt::format("{}: {}; {}makespan {}{}, bubble {}",
                     schedule.name.empty() ? "schedule" : schedule.name, shape_text(schedule),
                     is_measured ? "measured " : "", number_text(simulation.report.makespan), unit,
                     percent_text(simulation.report.bubble_rate));
}

// A schedule and its times.
struct Drawn {
  Input input;
  Simulation simulation;
  bool is_measured;
};

// The title of a page, which also says how far a simulated schedule is from the best.
std::string page_title(const Drawn& one) {
  if (one.is_measured) return title_of(one.input, one.simulation, true);
  const schedule::ScheduleBound& bound = *one.simulation.bound;
  const double cost = one.simulation.report.cost;
  const double gap = ir::without_rounding(bound.gap(cost), 1);
  return title_of(one.input, one.simulation, false) +
         (bound.value > 0 ? fmt::format(", cost {}, lower bound {} ({}), gap {}", number_text(cost),
                                        number_text(bound.value), bound.name, percent_text(gap))
                          : "");
}

schedule::HtmlRun page_run(const Drawn& one) {
  return {page_title(one),         one.input.schedule(),
          one.simulation.costs,    schedule::graph_of(one.input.any()),
          one.simulation.timeline, nullptr,
          one.is_measured};
}

void print_page(schedule::HtmlRun run, const std::optional<Drawn>& against, std::ostream& out) {
  std::vector<schedule::HtmlRun> runs{std::move(run)};
  if (against) runs.push_back(page_run(*against));
  schedule::print_html(runs, out);
}

// The schedule of --against, compiled to the level of the first one. `input` is as read by
// parse_input().
Drawn draw_against(const Invocation& invocation, Input input, const ir::AnySchedule& first,
                   AskedCosts asked, Console& console) {
  require_ok(input, console);
  const ir::Level level = std::holds_alternative<ir::Program>(first) ? ir::Level::kComputeComms
                                                                     : ir::Level::kComputeOnly;
  const StageRatio ratio = asked.recorded_in.empty()
                               ? ratio_of(invocation, ir::schedule_of(first), input.schedule())
                               : StageRatio();
  if (!ratio.is_one()) console.err << "note: " << describe(ratio) << "\n";
  scale_stages(ratio, &asked.request.costs);
  input.costs = asked.request.costs;
  compile_input(invocation, {level, level}, schedule::Depth::kVerify, &input, console);
  require_ok(input, console);
  const bool measured = input.compiled.recording.has_value();
  Simulation simulation =
      measured ? recorded_run_of(input, asked, console) : simulate_input(input, asked, console);
  return {std::move(input), std::move(simulation), measured};
}

// One line below a timeline.
void print_summary(const Simulation& simulation, bool is_measured, std::ostream& out) {
  const schedule::Report& report = simulation.report;
  const auto peak = [](const schedule::RankReport& rank) { return rank.peak_activations.amount; };
  const auto [least_rank, most_rank] = std::ranges::minmax_element(report.ranks, {}, peak);
  const auto least = peak(*least_rank), most = peak(*most_rank);
  const std::string unit = simulation.costs.unit.empty() ? "" : " " + simulation.costs.unit;
  out << fmt::format("{}makespan {}{}, cost {}, bubble {}, peak activations {}\n",
                     is_measured ? "measured: " : "", number_text(report.makespan), unit,
                     number_text(report.cost), percent_text(report.bubble_rate),
                     least == most ? std::to_string(most) : fmt::format("{} to {}", least, most));
}

void print_picture(const std::string& format, const Drawn& one,
                   const schedule::TimelineTextOptions& text, std::ostream& out) {
  const ir::Schedule& schedule = one.input.schedule();
  const Simulation& simulation = one.simulation;
  if (format == "timeline") {
    schedule::print_timeline(schedule, simulation.timeline, text, out);
    print_summary(simulation, one.is_measured, out);
  } else if (format == "svg") {
    schedule::print_svg(schedule, simulation.timeline,
                        title_of(one.input, simulation, one.is_measured), simulation.costs.unit,
                        out);
  } else if (format == "trace") {
    schedule::print_trace(schedule, simulation.costs, simulation.timeline, out);
  } else if (format == "pftrace") {
    schedule::print_perfetto(schedule, simulation.costs, simulation.timeline, out);
  } else if (format == "dot") {
    schedule::print_dot(schedule, schedule::graph_of(one.input.any()), out);
  }
}

// The schedule that cannot run to its end, up to where it stops.
void print_blocked(const std::string& format, const Input& input,
                   const schedule::BlockedSimulation& simulation,
                   const std::optional<Drawn>& against, schedule::TimelineTextOptions text,
                   std::ostream& out) {
  const ir::Schedule& schedule = ir::schedule_of(*input.compiled.blocked);
  const schedule::Standstill& standstill = simulation.standstill;
  const std::string unit = simulation.costs.unit.empty() ? "" : " " + simulation.costs.unit;
  size_t actions = 0;
  for (const ir::Row& row : schedule.rows)
    actions += static_cast<size_t>(
        std::ranges::count_if(row, [](const ir::Action& action) { return !action.is_idle(); }));
  const std::string stops =
      fmt::format("stops at {}{} after {} of {}",
                  number_text(ir::span_of(schedule.rows, simulation.timeline).end), unit,
                  actions - standstill.num_blocked, ir::counted(actions, "action", "actions"));
  const std::string title =
      fmt::format("{}: {}; {}", schedule.name.empty() ? "schedule" : schedule.name,
                  shape_text(schedule), stops);
  if (format == "svg") {
    schedule::print_svg(schedule, simulation.timeline, title, simulation.costs.unit, out,
                        &standstill);
    return;
  }
  if (format == "dot") {
    schedule::print_dot(schedule, simulation.graph, out, &standstill);
    return;
  }
  if (format == "html") {
    print_page(
        {title, schedule, simulation.costs, simulation.graph, simulation.timeline, &standstill},
        against, out);
    return;
  }
  if (format == "trace") {
    schedule::print_trace(schedule, simulation.costs, simulation.timeline, out, &standstill);
    return;
  }
  if (format == "pftrace") {
    schedule::print_perfetto(schedule, simulation.costs, simulation.timeline, out, &standstill);
    return;
  }
  text.standstill = &standstill;
  schedule::print_timeline(schedule, simulation.timeline, text, out);
  out << stops << "; `!` is the first action of a rank that never runs\n";
  for (const schedule::Standstill::Edge& wait : standstill.waits) out << wait.text << '\n';
}

// The format of --format, which must not contradict the extension of the output file. Without
// --format, the format of the extension; otherwise a timeline on a terminal, and a table elsewhere.
std::string format_of(const Invocation& invocation, const std::string& path, bool to_stdout,
                      const Console& console) {
  const std::optional<std::string> given = invocation.text("--format");
  if (to_stdout) return given.value_or(console.out_is_terminal ? "timeline" : "table");
  const std::string named = format_of_extension(path);
  if (named.empty()) return given.value_or("table");
  // A trace is JSON too, and its viewers expect the extension .json.
  const bool agrees = !given || *given == named || (*given == "trace" && named == "json");
  if (!agrees)
    throw UsageError(fmt::format("--format: expected {} for the file {}, got {}",
                                 named == "json" ? "json or trace" : named, ir::backticked(path),
                                 *given));
  return given.value_or(named);
}

}  // namespace

int run_print(const Invocation& invocation, Console& console) {
  const std::string path = invocation.text("--output").value_or("-");
  const bool to_stdout = path == "-";
  const std::string format = format_of(invocation, path, to_stdout, console);
  if (format == "kineto" && to_stdout) throw UsageError("--format kineto requires --output FOLDER");
  if (invocation.has("--comms") && format != "timeline")
    throw UsageError("--comms requires --format timeline");
  if (invocation.has("--against") && format != "html")
    throw UsageError("--against requires --format html");
  // The schedule after the watched pass goes to stderr, so that stdout has the result only.
  const std::optional<std::string> watched = invocation.text("--print-after");
  bool seen = false;
  const auto observer = [&](std::string_view pass, const ir::AnySchedule& schedule) {
    if (pass != watched) return;
    seen = true;
    console.err << fmt::format("after {}:\n", pass);
    const schedule::TableOptions table{console.err_width, console.err_color};
    if (!print_as(format, schedule, table, console.err))
      print_as("table", schedule, table, console.err);
  };

  // Formats without times print a schedule as it is, even if it is invalid.
  Input input = read_input(invocation, console);
  if (!is_picture(format) && !plans_with_costs(input))
    refuse_cost_options(invocation, "--format timeline, svg, html, trace, pftrace, kineto or dot");
  AskedCosts asked = read_costs(invocation, console);
  std::optional<Input> second;
  if (const auto word = invocation.text("--against")) {
    second = read_input(*word, console);
    parse_input(invocation, &*second);
    // What is not measured takes the time that is.
    take_recorded_costs(invocation, *second, &asked);
  }
  input.costs = asked.request.costs;
  compile_input(invocation, {},
                is_picture(format) ? schedule::Depth::kVerify : schedule::Depth::kLower, &input,
                console, observer);
  if (asked.recorded_in.empty()) take_recorded_costs(invocation, input, &asked);
  const schedule::TimelineTextOptions text{
      to_stdout ? console.out_width : 0, to_stdout && console.out_color, invocation.has("--comms")};
  const auto against_of = [&](const ir::AnySchedule& first) {
    return second
               ? std::optional(draw_against(invocation, std::move(*second), first, asked, console))
               : std::nullopt;
  };
  if (input.compiled.blocked && is_picture(format)) {
    print_diagnostics(input, console);
    const schedule::BlockedSimulation blocked = simulate_blocked_input(input, asked, console);
    const std::optional<Drawn> against = against_of(*input.compiled.blocked);
    if (format == "kineto") {
      write_trace_folder(path,
                         {ir::schedule_of(*input.compiled.blocked), blocked.costs, blocked.timeline,
                          &blocked.standstill},
                         console);
      return kExitInvalid;
    }
    write_output(path, console, [&](std::ostream& out) {
      print_blocked(format, input, blocked, against, text, out);
    });
    return kExitInvalid;
  }
  require_ok(input, console);
  const schedule::TableOptions table{to_stdout ? console.out_width : 0,
                                     to_stdout && console.out_color};
  if (watched && !seen) console.err << fmt::format("note: the pass {} did not run\n", *watched);
  if (!is_picture(format)) {
    if (input.compiled.recording && (format == "csv" || format == "plan"))
      console.err << fmt::format("note: the recording of {} is left out: a {} has no times\n",
                                 input.name, format);
    if (format == "csv" && !input.schedule().recompute.empty())
      console.err << fmt::format(
          "note: `recompute` of {} is left out: a csv cannot say which stages recompute\n",
          input.name);
    write_output(path, console,
                 [&](std::ostream& out) { print_with_recording(format, input, table, out); });
    return kExitOk;
  }
  // The measured run, unless costs ask for a predicted one.
  const bool is_measured = input.compiled.recording && !has_cost_options(invocation);
  Simulation simulation =
      is_measured ? recorded_run_of(input, asked, console) : simulate_input(input, asked, console);
  if (is_measured && (format == "trace" || format == "pftrace" || format == "kineto"))
    console.err << fmt::format("note: the times are those of the recording of {}\n", input.name);
  const Drawn drawn{std::move(input), std::move(simulation), is_measured};
  const std::optional<Drawn> against = against_of(drawn.input.any());
  if (format == "kineto") {
    const Simulation& run = drawn.simulation;
    write_trace_folder(path, {drawn.input.schedule(), run.costs, run.timeline}, console);
    return kExitOk;
  }
  write_output(path, console, [&](std::ostream& out) {
    if (format == "html") {
      print_page(page_run(drawn), against, out);
    } else {
      print_picture(format, drawn, text, out);
    }
  });
  return kExitOk;
}

}  // namespace pipewright::cli
