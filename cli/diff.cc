#include "pipewright/schedule/views/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/drift_report.h"
#include "pipewright/cli/input.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/cli/json.h"
#include "pipewright/cli/run.h"
#include "pipewright/ir/text/action_text.h"
#include "pipewright/ir/text/read.h"
#include "pipewright/schedule/verify/verify.h"

namespace pipewright::cli {
namespace {

using schedule::Report;
using schedule::RowChange;

int peak_activations(const Report& report) {
  const auto peak = [](const schedule::RankReport& rank) { return rank.peak_activations.amount; };
  return peak(*std::ranges::max_element(report.ranks, {}, peak));
}

double peak_bytes(const Report& report) {
  const auto peak = [](const schedule::RankReport& rank) { return rank.peak_bytes.amount; };
  return peak(*std::ranges::max_element(report.ranks, {}, peak));
}

std::string tokens(const std::vector<ir::Action>& actions) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t index = 0; index < std::min(actions.size(), kShown); ++index)
    text += (index == 0 ? "" : " ") + ir::to_string(actions[index]);
  if (actions.size() > kShown) text += fmt::format(" and {} more", actions.size() - kShown);
  return text;
}

Json tokens_json(const std::vector<ir::Action>& actions) {
  return list_json(actions, [](const ir::Action& action) { return ir::to_string(action); });
}

Json changes_json(const std::vector<RowChange>& changes) {
  return list_json(changes, [](const RowChange& change) {
    return Json{{"removed", tokens_json(change.removed)},
                {"added", tokens_json(change.added)},
                {"moved", tokens_json(change.moved)}};
  });
}

Json side_json(const Simulation& simulation) {
  const Report& report = simulation.report;
  return {{"makespan", report.makespan},
          {"cost", report.cost},
          {"bubble_rate", report.bubble_rate},
          {"peak_activations", peak_activations(report)},
          {"peak_bytes", simulation.costs.has_sizes() ? Json(peak_bytes(report)) : Json(nullptr)}};
}

// The channel model of a program, as text; empty for an order.
std::string channels_text(const Run& run) {
  if (run.program() == nullptr) return "";
  const schedule::VerifyOptions options = schedule::options_of(run.program()->lowering);
  return ir::describe_channels(options.channels, options.capacity) +
         (options.weight_free_w ? ", weight-free W" : "");
}

void print_changes(const std::vector<RowChange>& changes, std::ostream& out) {
  for (size_t rank = 0; rank < changes.size(); ++rank) {
    const auto line = [&](char sign, std::string_view what,
                          const std::vector<ir::Action>& actions) {
      if (!actions.empty())
        out << fmt::format("rank {}: {} {} {}: {}\n", rank, sign, actions.size(), what,
                           tokens(actions));
    };
    line('-', "removed", changes[rank].removed);
    line('+', "added", changes[rank].added);
    line('~', "moved", changes[rank].moved);
  }
}

void print_effect(const Simulation& left, const Simulation& right, const StageRatio& ratio,
                  std::ostream& out) {
  const std::string unit = left.costs.unit.empty() ? "" : " (" + left.costs.unit + ")";
  out << fmt::format("\n{:<22}  {:>10}  {:>10}  {:>8}\n", "", "before", "after", "change");
  const auto line = [&](const std::string& what, double before, double after) {
    const std::string change = before == after ? "="
                               : before == 0   ? "new"
                                             : fmt::format("{:+.1f}%", 100 * (after / before - 1));
    out << fmt::format("{:<22}  {:>10}  {:>10}  {:>8}\n", what, number_text(before),
                       number_text(after), change);
  };
  const auto rounded = [](double rate) { return std::round(1e4 * rate) / 1e4; };
  line("makespan" + unit, left.report.makespan, right.report.makespan);
  line("cost" + unit, left.report.cost, right.report.cost);
  line("bubble rate", rounded(left.report.bubble_rate), rounded(right.report.bubble_rate));
  line("peak activations", peak_activations(left.report),
       ratio.value() * peak_activations(right.report));
  if (left.costs.has_sizes())
    line("peak MiB", peak_bytes(left.report) / (1 << 20), peak_bytes(right.report) / (1 << 20));
}

// A schedule and its times, measured if it has a recording.
struct Side {
  Run run;
  Simulation simulation;
};

Side simulated(Run run) {
  run.require_ok();
  Simulation simulation = run.is_recorded() ? run.recorded() : run.predicted();
  return {std::move(run), std::move(simulation)};
}

// The drift of a measured run from a prediction or from an earlier run; nullopt if no run is
// measured.
std::optional<RunPair> drift_between(const Side& left, const Side& right) {
  if (!left.run.is_recorded() && !right.run.is_recorded()) return std::nullopt;
  const auto& [predicted, measured] =
      right.run.is_recorded() ? std::tie(left, right) : std::tie(right, left);
  RunPair runs{left.run.schedule(), predicted.simulation, measured.simulation,
               measured.run.baseline()};
  if (predicted.run.is_recorded()) {
    runs.baseline = schedule::Baseline::kEarlierRun;
    runs.first_name = "before";
    runs.second_name = "after";
  }
  return runs;
}

}  // namespace

int run_diff(const Invocation& invocation, Console& console) {
  const auto read = [&](const std::string& word) {
    return read_input(invocation, word, console, MemoryOption::kOfCommand);
  };
  Input inputs[2] = {read(invocation.arguments[0]), read(invocation.arguments[1])};
  // Compare at one level: if either schedule is a program, the other one is lowered.
  ir::Level level = ir::Level::kComputeOnly;
  for (const Input& input : inputs) {
    require_ok(input, console);
    if (input.source.level() == ir::Level::kComputeComms) level = ir::Level::kComputeComms;
  }
  const bool all_recorded = std::ranges::all_of(
      inputs, [](const Input& input) { return input.source.recording() != nullptr; });
  if (all_recorded && given_cost_option(invocation))
    throw UsageError("costs require a schedule without a recording: both are measured");
  AskedCosts costs = read_costs(invocation, console);
  // What is not measured takes the time that is.
  for (const Input& input : inputs) take_recorded_costs(invocation, input, &costs);
  const int stages = inputs[0].source.num_stages(), stages_after = inputs[1].source.num_stages();
  const RunOptions options{.level_of_name = level, .level_of_file = level};
  const Side left = simulated(Run(invocation, console, std::move(inputs[0]), costs, options));
  const StageRatio ratio = scale_stages(invocation, stages, stages_after, &costs);
  const Side right = simulated(Run(invocation, console, std::move(inputs[1]), costs, options));

  const ir::Schedule& before = left.run.schedule();
  const ir::Schedule& after = right.run.schedule();
  const std::vector<RowChange> changes = schedule::changes_of(before.rows, after.rows);
  const bool same_shape = before.placement == after.placement &&
                          before.num_microbatches == after.num_microbatches &&
                          before.slices == after.slices;
  // Programs are verified and simulated under a channel model, so a different model is a
  // difference.
  const std::string channels_before = channels_text(left.run),
                    channels_after = channels_text(right.run);
  const bool equal = same_shape && channels_before == channels_after &&
                     before.recompute == after.recompute && before.offload == after.offload &&
                     before.cut == after.cut && std::ranges::all_of(changes, &RowChange::empty);
  const std::optional<RunPair> drift =
      before.rows == after.rows ? drift_between(left, right) : std::nullopt;
  const int exit_code = equal ? kExitOk : kExitInvalid;
  if (invocation.has("--json")) {
    Json json = {{"version", 1},
                 {"equal", equal},
                 {"stage_ratio", ratio.value()},
                 {"before", side_json(left.simulation)},
                 {"after", side_json(right.simulation)}};
    if (drift) json["drift"] = drift_json(*drift);
    json["ranks"] = changes_json(changes);
    print_json(json, console.out);
    return exit_code;
  }
  const auto shape = [](const ir::Schedule& schedule) {
    return fmt::format("{}, placement {}", shape_text(schedule), schedule.placement.to_string());
  };
  if (equal) {
    console.out << fmt::format("equal: {}\n", shape(before));
    if (drift) {
      console.out << '\n';
      print_drift(*drift, console.out);
    }
    return exit_code;
  }
  const auto print_both = [&](std::string_view what, const std::string& one,
                              const std::string& other) {
    console.out << fmt::format("- {0}{1}\n+ {0}{2}\n", what, one, other);
  };
  if (!same_shape) print_both("", shape(before), shape(after));
  if (channels_before != channels_after) print_both("", channels_before, channels_after);
  if (before.recompute != after.recompute)
    print_both("recompute: ", stages_text(before.recompute, before),
               stages_text(after.recompute, after));
  if (before.offload != after.offload)
    print_both("offload: ", stages_text(before.offload, before), stages_text(after.offload, after));
  if (before.cut != after.cut) print_both("cut: ", cut_text(before.cut), cut_text(after.cut));
  print_changes(changes, console.out);
  if (!ratio.is_one()) console.out << "\n" << ratio.text() << "\n";
  print_effect(left.simulation, right.simulation, ratio, console.out);
  return exit_code;
}

}  // namespace pipewright::cli
