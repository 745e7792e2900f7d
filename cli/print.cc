#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <ostream>
#include <string>
#include <utility>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/files.h"
#include "pipewright/cli/input.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/cli/run.h"
#include "pipewright/cli/views.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/printable.h"

namespace pipewright::cli {
namespace {

std::string title_of(const ir::Schedule& schedule) {
  return fmt::format("{}: {}", schedule.name.empty() ? "schedule" : schedule.name,
                     shape_text(schedule));
}

// One line below a timeline.
std::string summary_of(const Simulation& simulation, bool is_measured) {
  const schedule::Report& report = simulation.report;
  const auto peak = [](const schedule::RankReport& rank) { return rank.peak_activations.amount; };
  const auto [least_rank, most_rank] = std::ranges::minmax_element(report.ranks, {}, peak);
  const auto least = peak(*least_rank), most = peak(*most_rank);
  return fmt::format("{}makespan {}{}, cost {}, bubble {}, peak activations {}\n",
                     is_measured ? "measured: " : "", number_text(report.makespan),
                     unit_text(simulation.costs.unit), number_text(report.cost),
                     percent_text(report.bubble_rate),
                     least == most ? std::to_string(most) : fmt::format("{} to {}", least, most));
}

// ", cost 34, lower bound 33 (nested_window), gap 3.0%": how far a schedule is from the best.
std::string bound_text(const Simulation& simulation) {
  if (!simulation.bound || simulation.bound->value <= 0) return "";
  const double cost = simulation.report.cost;
  return fmt::format(", cost {}, lower bound {} ({}), gap {}", number_text(cost),
                     number_text(simulation.bound->value), simulation.bound->name,
                     percent_text(ir::without_rounding(simulation.bound->gap(cost), 1)));
}

// The recorded run if `is_measured`, otherwise the predicted one.
Picture picture_of(const Run& run, bool is_measured) {
  Simulation simulation = is_measured ? run.recorded() : run.predicted();
  std::string title = fmt::format(
      "{}; {}makespan {}{}, bubble {}{}", title_of(run.schedule()), is_measured ? "measured " : "",
      number_text(simulation.report.makespan), unit_text(simulation.costs.unit),
      percent_text(simulation.report.bubble_rate), bound_text(simulation));
  std::string summary = summary_of(simulation, is_measured);
  return {.any = run.any(),
          .costs = std::move(simulation.costs),
          .timeline = std::move(simulation.timeline),
          .is_measured = is_measured,
          .title = std::move(title),
          .summary = std::move(summary)};
}

// Of a schedule that cannot run to its end, up to where it stops.
Picture blocked_picture_of(const Run& run) {
  schedule::BlockedSimulation simulation = run.blocked();
  const ir::Schedule& schedule = ir::schedule_of(*run.compiled().blocked);
  size_t actions = 0;
  for (const ir::Row& row : schedule.rows)
    actions += static_cast<size_t>(
        std::ranges::count_if(row, [](const ir::Action& action) { return !action.is_idle(); }));
  const std::string stops =
      fmt::format("stops at {}{} after {} of {}",
                  number_text(ir::span_of(schedule.rows, simulation.timeline).end),
                  unit_text(simulation.costs.unit), actions - simulation.standstill.num_blocked,
                  ir::counted(actions, "action", "actions"));
  std::string summary = stops + "; `!` is the first action of a rank that never runs\n";
  for (const schedule::Standstill::Edge& wait : simulation.standstill.waits)
    summary += wait.text + '\n';
  return {.any = *run.compiled().blocked,
          .costs = std::move(simulation.costs),
          .timeline = std::move(simulation.timeline),
          .standstill = std::move(simulation.standstill),
          .title = fmt::format("{}; {}", title_of(schedule), stops),
          .summary = std::move(summary)};
}

// The view of --format, which must not contradict the extension of the output file. Without
// --format, the view of the extension; otherwise a timeline on a terminal, and a table elsewhere.
const View& view_of(const Invocation& invocation, const std::string& path, const Console& console) {
  const auto format = invocation.text("--format");
  const View* given = format ? find_view(*format) : nullptr;
  const View* named = path == "-" ? nullptr : view_of_extension(path);
  if (given == nullptr && named != nullptr) return *named;
  if (given == nullptr)
    return *find_view(path == "-" && console.out_is_terminal ? "timeline" : "table");
  if (named == nullptr || named == given || named->extension == given->extension2) return *given;
  std::string expected(named->name);
  for (const View& view : views()) {
    if (view.extension2 == named->extension) expected.append(" or ").append(view.name);
  }
  throw UsageError(fmt::format("--format: expected {} for the file {}, got {}", expected,
                               ir::backticked(path), given->name));
}

// Options that contradict the view.
void check_options(const Invocation& invocation, const View& view, bool to_stdout) {
  if (view.print == nullptr && to_stdout)
    throw UsageError(fmt::format("--format {} requires --output FOLDER", view.name));
  for (const View& other : views()) {
    const std::string option(other.own_option);
    if (&other != &view && invocation.has(option))
      throw UsageError(fmt::format("{} requires --format {}", option, other.name));
  }
}

void write(const View& view, const Picture& picture, const Invocation& invocation,
           Console& console) {
  const std::string path = invocation.text("--output").value_or("-");
  if (view.print == nullptr)
    return write_trace_folder(
        path, {picture.schedule(), picture.costs, picture.timeline, picture.stops()}, console);
  const bool to_stdout = path == "-";
  const schedule::TimelineTextOptions options{
      to_stdout ? console.out_width : 0, to_stdout && console.out_color, invocation.has("--comms")};
  write_output(path, console, [&](std::ostream& out) { view.print(picture, options, out); });
}

// A schedule as it is, which may be invalid.
void print_without_times(const View& view, const Run& run, const Invocation& invocation,
                         Console& console) {
  if (run.is_recorded() && view.loses_times)
    console.err << fmt::format("note: the recording of {} is left out: a {} has no times\n",
                               run.name(), view.name);
  const auto note_loss = [&](std::string_view key, const std::vector<int>& lost,
                             std::string_view what) {
    if (!view.loses_recompute || lost.empty()) return;
    console.err << fmt::format("note: `{}` of {} is left out: a {} cannot say {}\n", key,
                               run.name(), view.name, what);
  };
  note_loss("recompute", run.schedule().recompute, "which stages recompute");
  note_loss("offload", run.schedule().offload, "which stages offload");
  note_loss("cut", run.schedule().cut, "how layers are cut");
  if (view.loses_recompute && run.schedule().slices > 1)
    console.err << fmt::format(
        "note: `slices` of {} is left out: give --slices {} where the {} is read\n", run.name(),
        run.schedule().slices, view.name);
  if (view.loses_recompute && run.schedule().placement.num_replicas() > 1)
    console.err << fmt::format(
        "note: `replicas` of {} is left out: give --replicas 2 where the {} is read\n", run.name(),
        view.name);
  const auto& recording = run.compiled().recording;
  write(view, {run.any(), recording ? &*recording : nullptr}, invocation, console);
}

void print_with_times(const View& view, const Run& run, std::optional<Input> second,
                      const Invocation& invocation, Console& console) {
  // The measured run, unless costs ask for a predicted one.
  const bool is_measured = run.is_recorded() && !given_cost_option(invocation);
  Picture picture = run.compiled().blocked ? blocked_picture_of(run) : picture_of(run, is_measured);
  if (is_measured && !view.has_title)
    console.err << fmt::format("note: the times are those of the recording of {}\n", run.name());
  if (!second) return write(view, picture, invocation, console);

  require_ok(*second, console);
  AskedCosts costs = run.costs();
  const StageRatio ratio = scale_stages(invocation, picture.schedule().placement.num_stages(),
                                        second->source.num_stages(), &costs);
  if (!ratio.is_one()) console.err << "note: " << ratio.text() << "\n";
  const ir::Level level = ir::level_of(picture.any);
  const Run against(invocation, console, std::move(*second), std::move(costs),
                    {.level_of_name = level, .level_of_file = level});
  against.require_ok();
  const Picture against_picture = picture_of(against, against.is_recorded());
  picture.against = &against_picture;
  write(view, picture, invocation, console);
}

}  // namespace

int run_print(const Invocation& invocation, Console& console) {
  const std::string path = invocation.text("--output").value_or("-");
  const View& view = view_of(invocation, path, console);
  check_options(invocation, view, path == "-");
  Input input = read_input(invocation, invocation.arguments[0], console);
  const auto cost_option = given_cost_option(invocation);
  if (cost_option && !view.needs_times && !input.plans_with_costs())
    throw UsageError(fmt::format("{} requires --format {}", *cost_option, views_with_times()));
  AskedCosts costs = read_costs(invocation, console);
  costs.request.with_bound = view.shows_bound;
  std::optional<Input> second;
  if (const auto word = invocation.text("--against")) {
    second = read_input(invocation, *word, console);
    // What is not measured takes the time that is.
    take_recorded_costs(invocation, *second, &costs);
  }

  // The schedule after the watched pass goes to stderr, so that stdout has the result only.
  const std::optional<std::string> watched = invocation.text("--print-after");
  bool seen = false;
  const auto observer = [&](std::string_view pass, const ir::AnySchedule& schedule) {
    if (pass != watched) return;
    seen = true;
    console.err << fmt::format("after {}:\n", pass);
    const View& shown = view.needs_times ? *find_view("table") : view;
    shown.print({schedule}, {console.err_width, console.err_color}, console.err);
  };
  const Run run(invocation, console, std::move(input), std::move(costs),
                {.depth = view.needs_times ? schedule::Depth::kVerify : schedule::Depth::kLower,
                 .observer = observer});
  if (run.compiled().blocked && view.needs_times) {
    run.print_diagnostics();
    print_with_times(view, run, std::move(second), invocation, console);
    return kExitInvalid;
  }
  run.require_ok();
  if (watched && !seen) console.err << fmt::format("note: the pass {} did not run\n", *watched);
  if (view.needs_times) {
    print_with_times(view, run, std::move(second), invocation, console);
  } else {
    print_without_times(view, run, invocation, console);
  }
  return kExitOk;
}

}  // namespace pipewright::cli
