#include "pipewright/schedule/views/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/drift_report.h"
#include "pipewright/cli/input.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/cli/simulation.h"
#include "pipewright/ir/text/action_text.h"
#include "pipewright/ir/text/read.h"
#include "pipewright/schedule/verify/verify.h"

namespace pipewright::cli {
namespace {

using schedule::Report;
using schedule::RowChange;

int peak_activations(const Report& report) {
  int peak = 0;
  for (const schedule::RankReport& rank : report.ranks)
    peak = std::max(peak, rank.peak_activations.amount);
  return peak;
}

double peak_bytes(const Report& report) {
  double peak = 0;
  for (const schedule::RankReport& rank : report.ranks)
    peak = std::max(peak, rank.peak_bytes.amount);
  return peak;
}

std::string tokens(const std::vector<ir::Action>& actions) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t index = 0; index < std::min(actions.size(), kShown); ++index)
    text += (index == 0 ? "" : " ") + ir::to_string(actions[index]);
  if (actions.size() > kShown) text += fmt::format(" and {} more", actions.size() - kShown);
  return text;
}

std::string tokens_json(const std::vector<ir::Action>& actions) {
  std::string text;
  for (const ir::Action& action : actions)
    text += fmt::format("{}\"{}\"", text.empty() ? "" : ", ", ir::to_string(action));
  return text;
}

std::string side_json(const Simulation& simulation) {
  const Report& report = simulation.report;
  return fmt::format(
      "{{\"makespan\": {}, \"cost\": {}, \"bubble_rate\": {}, \"peak_activations\": {}, "
      "\"peak_bytes\": {}}}",
      report.makespan, report.cost, report.bubble_rate, peak_activations(report),
      simulation.costs.has_sizes() ? fmt::format("{}", peak_bytes(report)) : "null");
}

// The channel model of a program, as text; empty for an order.
std::string channels_text(const ir::AnySchedule& schedule) {
  if (!std::holds_alternative<ir::Program>(schedule)) return "";
  const schedule::VerifyOptions options = schedule::options_of(ir::schedule_of(schedule).lowering);
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

// The drift of a measured run from a prediction or from an earlier run; nullopt if no run is
// measured.
std::optional<RunPair> drift_between(const Input (&inputs)[2],
                                     const std::optional<Simulation> (&simulations)[2],
                                     const AskedCosts& costs) {
  const bool first = inputs[0].compiled.recording.has_value(),
             second = inputs[1].compiled.recording.has_value();
  if (!first && !second) return std::nullopt;
  const size_t measured = second ? 1 : 0;
  RunPair runs{inputs[0].schedule(), *simulations[1 - measured], *simulations[measured],
               baseline_of(costs, inputs[measured])};
  if (first && second) {
    runs.baseline = schedule::Baseline::kEarlierRun;
    runs.first_name = "before";
    runs.second_name = "after";
  }
  return runs;
}

}  // namespace

int run_diff(const Invocation& invocation, Console& console) {
  Input inputs[2] = {read_input(invocation, console, 0), read_input(invocation, console, 1)};
  for (Input& input : inputs) input.may_ignore_memory = true;
  // Compare at one level: if either schedule is a program, the other one is lowered.
  ir::Level level = ir::Level::kComputeOnly;
  for (Input& input : inputs) {
    parse_input(invocation, &input);
    require_ok(input, console);
    if (input.compiled.source_level == ir::Level::kComputeComms) level = ir::Level::kComputeComms;
  }
  const auto is_recorded = [](const Input& input) { return input.compiled.recording.has_value(); };
  if (std::ranges::all_of(inputs, is_recorded) && has_cost_options(invocation))
    throw UsageError("costs require a schedule without a recording: both are measured");
  AskedCosts costs = read_costs(invocation, console);
  // What is not measured takes the time that is.
  for (const Input& input : inputs) take_recorded_costs(invocation, input, &costs);
  const StageRatio ratio = costs.recorded_in.empty()
                               ? ratio_of(invocation, inputs[0].schedule(), inputs[1].schedule())
                               : StageRatio();
  std::optional<Simulation> simulations[2];
  for (size_t side = 0; side < 2; ++side) {
    if (side == 1) scale_stages(ratio, &costs.request.costs);
    inputs[side].costs = costs.request.costs;
    compile_input(invocation, {level, level}, schedule::Depth::kVerify, &inputs[side], console);
    require_ok(inputs[side], console);
    simulations[side] = is_recorded(inputs[side]) ? recorded_run_of(inputs[side], costs, console)
                                                  : simulate_input(inputs[side], costs, console);
  }
  const ir::Schedule& left = inputs[0].schedule();
  const ir::Schedule& right = inputs[1].schedule();
  const std::vector<RowChange> changes = schedule::changes_of(left.rows, right.rows);
  const bool same_shape =
      left.placement == right.placement && left.num_microbatches == right.num_microbatches;
  // Programs are verified and simulated under a channel model, so a different model is a
  // difference.
  const std::string left_channels = channels_text(inputs[0].any()),
                    right_channels = channels_text(inputs[1].any());
  const bool equal = same_shape && left_channels == right_channels &&
                     left.recompute == right.recompute &&
                     std::ranges::all_of(changes, &RowChange::empty);
  const std::optional<RunPair> drift =
      left.rows == right.rows ? drift_between(inputs, simulations, costs) : std::nullopt;
  if (invocation.has("--json")) {
    std::string ranks;
    for (const RowChange& change : changes) {
      ranks += fmt::format("{}\n    {{\"removed\": [{}], \"added\": [{}], \"moved\": [{}]}}",
                           ranks.empty() ? "" : ",", tokens_json(change.removed),
                           tokens_json(change.added), tokens_json(change.moved));
    }
    console.out << fmt::format(
        "{{\n  \"version\": 1,\n  \"equal\": {},\n  \"stage_ratio\": {},\n  \"before\": {},\n  "
        "\"after\": {},\n{}  \"ranks\": [{}\n  ]\n}}\n",
        equal, ratio.value(), side_json(*simulations[0]), side_json(*simulations[1]),
        drift ? "  \"drift\": " + drift_json(*drift) + ",\n" : "", ranks);
    return equal ? kExitOk : kExitInvalid;
  }
  const auto shape = [](const ir::Schedule& schedule) {
    return fmt::format("{}, placement {}", shape_text(schedule), schedule.placement.to_string());
  };
  if (equal) {
    console.out << fmt::format("equal: {}\n", shape(left));
    if (drift) {
      console.out << '\n';
      print_drift(*drift, console.out);
    }
    return kExitOk;
  }
  if (!same_shape) console.out << fmt::format("- {}\n+ {}\n", shape(left), shape(right));
  if (left_channels != right_channels)
    console.out << fmt::format("- {}\n+ {}\n", left_channels, right_channels);
  if (left.recompute != right.recompute)
    console.out << fmt::format("- recompute: {}\n+ recompute: {}\n", recompute_text(left),
                               recompute_text(right));
  print_changes(changes, console.out);
  if (!ratio.is_one()) console.out << "\n" << describe(ratio) << "\n";
  print_effect(*simulations[0], *simulations[1], ratio, console.out);
  return kExitInvalid;
}

}  // namespace pipewright::cli
