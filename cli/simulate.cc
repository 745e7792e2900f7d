#include "pipewright/schedule/simulate/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/drift_report.h"
#include "pipewright/cli/input.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/cli/receive_slots_json.h"
#include "pipewright/cli/simulation.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/action_text.h"
#include "pipewright/ir/text/read.h"
#include "pipewright/schedule/verify/verify.h"

namespace pipewright::cli {
namespace {

using schedule::RankReport;

// --jitter, --runs and --seed.
struct Jitter {
  double sigma;
  int runs;
  uint64_t seed;
};

std::optional<Jitter> jitter_of(const Invocation& invocation) {
  const auto sigma_text = invocation.text("--jitter");
  if (!sigma_text) {
    for (const char* option : {"--runs", "--seed"}) {
      if (invocation.has(option)) throw UsageError(fmt::format("{} requires --jitter", option));
    }
    return std::nullopt;
  }
  const auto sigma = number_of<double>("--jitter", *sigma_text, "a number from 0 to 2",
                                       [](double value) { return value >= 0 && value <= 2; });
  return Jitter{sigma, invocation.number("--runs").value_or(100),
                static_cast<uint64_t>(invocation.number("--seed").value_or(1))};
}

// By rank; empty for a compute order, which has no RECVs.
std::vector<schedule::ReceiveSlots> receive_slots_of(const Input& input) {
  const auto* program = std::get_if<ir::Program>(&input.any());
  return program == nullptr ? std::vector<schedule::ReceiveSlots>()
                            : schedule::receive_slots(*program);
}

// ---- JSON

std::string number_json(double number) { return fmt::format("{}", number); }

std::string step_json(const std::optional<int>& step) {
  return step ? std::to_string(*step) : "null";
}

std::string rank_json(int rank) { return rank < 0 ? "null" : std::to_string(rank); }

std::string bound_json(const schedule::ScheduleBound& bound) {
  std::string terms;
  for (const auto& [name, value] : bound.terms)
    terms += fmt::format("{}\"{}\": {}", terms.empty() ? "" : ", ", name, number_json(value));
  return fmt::format(
      "{{\"value\": {}, \"name\": \"{}\", \"rank\": {}, \"other\": {}, \"terms\": {{{}}}}}",
      number_json(bound.value), bound.name, rank_json(bound.rank), rank_json(bound.other), terms);
}

std::string actions_json(const ir::Schedule& schedule, const ir::Timeline& timeline,
                         const std::vector<double>& slack, size_t rank) {
  std::string all;
  for (size_t step = 0; step < schedule.rows[rank].size(); ++step) {
    if (schedule.rows[rank][step].is_idle()) continue;
    const ir::Interval& interval = timeline.at(rank, step);
    all += fmt::format(
        "{}\n      {{\"step\": {}, \"action\": \"{}\", \"start\": {}, \"end\": {}, \"slack\": {}}}",
        all.empty() ? "" : ",", step, ir::to_string(schedule.rows[rank][step]),
        number_json(interval.start), number_json(interval.end),
        number_json(slack[timeline.index(rank, step)]));
  }
  return all;
}

void print_json(const Invocation& invocation, const Input& input, const Simulation& simulation,
                const schedule::ChannelGraph& graph, const std::optional<schedule::Spread>& spread,
                const std::optional<RunPair>& drift, std::ostream& out) {
  const ir::Schedule& schedule = input.schedule();
  const schedule::Report& report = simulation.report;
  const bool sizes = simulation.costs.has_sizes();
  const bool program = std::holds_alternative<ir::Program>(input.any());
  const schedule::VerifyOptions channels = schedule::options_of(schedule.lowering);
  const std::string capacity = ir::to_string_capacity(channels.capacity);
  std::string ranks;
  const std::vector<schedule::ReceiveSlots> slots = receive_slots_of(input);
  const bool with_actions = invocation.has("--actions");
  const std::vector<double> slack =
      with_actions ? schedule::slack_of(graph, schedule, simulation.costs, simulation.timeline)
                   : std::vector<double>();
  for (size_t rank = 0; rank < report.ranks.size(); ++rank) {
    const RankReport& one = report.ranks[rank];
    ranks += fmt::format(
        "{}\n    {{\"span\": {}, \"busy\": {}, \"idle\": {}, \"exposed_communication\": {}, "
        "\"peak_activations\": {}, \"peak_activations_step\": {}, \"peak_bytes\": {}, "
        "\"peak_bytes_step\": {}, \"receive_slots\": {}",
        rank == 0 ? "" : ",", number_json(one.span()), number_json(one.busy),
        number_json(one.idle()), number_json(one.exposed_communication),
        one.peak_activations.amount, step_json(one.peak_activations.step),
        sizes ? number_json(one.peak_bytes.amount) : "null",
        sizes ? step_json(one.peak_bytes.step) : "null",
        slots.empty() ? "null" : receive_slots_json(slots[rank]));
    if (with_actions)
      ranks += fmt::format(", \"actions\": [{}\n    ]",
                           actions_json(schedule, simulation.timeline, slack, rank));
    ranks += "}";
  }
  std::string path;
  for (const schedule::CriticalStep& step :
       schedule::critical_path(graph, schedule, simulation.costs, simulation.timeline)) {
    const auto rank = static_cast<size_t>(step.rank), at = static_cast<size_t>(step.step);
    const ir::Interval& interval = simulation.timeline.at(rank, at);
    path += fmt::format(
        "{}\n    {{\"rank\": {}, \"step\": {}, \"action\": \"{}\", \"start\": {}, \"end\": {}}}",
        path.empty() ? "" : ",", step.rank, step.step, ir::to_string(schedule.rows[rank][at]),
        number_json(interval.start), number_json(interval.end));
  }
  std::string jitter = "null";
  if (spread)
    jitter = fmt::format(
        "{{\"runs\": {}, \"min\": {}, \"median\": {}, \"mean\": {}, \"deviation\": {}, "
        "\"percentile_95\": {}, \"max\": {}}}",
        spread->runs, number_json(spread->least), number_json(spread->median),
        number_json(spread->mean), number_json(spread->deviation),
        number_json(spread->percentile_95), number_json(spread->most));
  out << fmt::format(
      "{{\n  \"version\": 1,\n  \"level\": \"{}\",\n  \"channels\": {},\n  \"capacity\": {},\n"
      "  \"unit\": {},\n  \"makespan\": {},\n  \"cost\": {},\n  \"bubble_rate\": {},\n"
      "  \"memory_limits\": [{}],\n  \"memory_per_stage\": {{\"activation\": [{}], "
      "\"weight_input\": [{}], \"recomputed\": [{}]}},\n  \"bound\": {},\n  \"gap\": {},\n  "
      "\"jitter\": {},\n  "
      "\"ranks\": [{}\n  ],\n  "
      "\"critical_path\": [{}\n  ],\n{}  \"diagnostics\": []\n}}\n",
      ir::name(ir::level_of(input.any())),
      program ? fmt::format("\"{}\"", ir::name(channels.channels)) : "null",
      !program            ? "null"
      : capacity == "inf" ? "\"inf\""
                          : capacity,
      simulation.costs.unit.empty() ? "null" : fmt::format("\"{}\"", simulation.costs.unit),
      number_json(report.makespan), number_json(report.cost), number_json(report.bubble_rate),
      fmt::join(simulation.bound->memory_limits, ", "),
      fmt::join(simulation.bound->activations, ", "),
      fmt::join(simulation.bound->weight_inputs, ", "),
      fmt::join(simulation.bound->recomputed, ", "), bound_json(*simulation.bound),
      number_json(simulation.bound->gap(report.cost)), jitter, ranks, path,
      drift ? "  \"drift\": " + drift_json(*drift) + ",\n" : "");
}

// ---- text

// "F 12 + B 21 + transfers 3 + copies 4": where the time of the critical path goes.
std::string path_text(const ir::Schedule& schedule, const Simulation& simulation,
                      const schedule::ChannelGraph& graph) {
  std::map<ir::ActionKind, double> by_kind;
  double transfers = 0, copies = 0;
  for (const schedule::CriticalStep& step :
       schedule::critical_path(graph, schedule, simulation.costs, simulation.timeline)) {
    const auto rank = static_cast<size_t>(step.rank), at = static_cast<size_t>(step.step);
    const ir::ActionKind kind = schedule.rows[rank][at].kind();
    transfers += step.transfer;
    copies += step.copies;
    if (ir::is_send(kind)) {
      transfers += simulation.timeline.at(rank, at).duration();
    } else if (!ir::is_receive(kind)) {
      by_kind[kind] += simulation.timeline.at(rank, at).duration();
    }
  }
  std::string text;
  const auto add = [&](std::string_view what, double time) {
    if (time > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : " + ", what, number_text(time));
  };
  for (const auto& [kind, time] : by_kind) add(ir::info(kind).token, time);
  add("transfers", transfers);
  add("copies", copies);
  return text;
}

// "receive slots  1 to 2 per rank if pooled, 2 to 3 if each stage and direction has its own"
void print_receive_slots(const std::vector<schedule::ReceiveSlots>& slots, std::ostream& out) {
  const auto range = [&](const auto& slots_of) {
    const auto [least, most] = std::ranges::minmax_element(slots, {}, slots_of);
    const int low = slots_of(*least), high = slots_of(*most);
    return low == high ? std::to_string(low) : fmt::format("{} to {}", low, high);
  };
  out << fmt::format(
      "receive slots  {} per rank if pooled, {} if each stage and direction has its own\n",
      range([](const schedule::ReceiveSlots& one) { return one.pooled; }),
      range([](const schedule::ReceiveSlots& one) { return one.separate(); }));
}

// "nested window of ranks 0 and 3"
std::string bound_text(const schedule::ScheduleBound& bound) {
  std::string text(bound.name);
  std::ranges::replace(text, '_', ' ');
  if (bound.rank < 0) return text;
  return bound.other < 0 ? fmt::format("{} of rank {}", text, bound.rank)
                         : fmt::format("{} of ranks {} and {}", text, bound.rank, bound.other);
}

void print_rank_table(const Simulation& simulation, std::ostream& out) {
  const bool sizes = simulation.costs.has_sizes();
  out << fmt::format("{:>4}  {:>10}  {:>10}  {:>10}  {:>10}  {:>11}", "rank", "span", "busy",
                     "idle", "exposed", "activations");
  out << (sizes ? fmt::format("  {:>12}\n", "peak MiB") : "\n");
  for (size_t rank = 0; rank < simulation.report.ranks.size(); ++rank) {
    const RankReport& one = simulation.report.ranks[rank];
    out << fmt::format("{:>4}  {:>10}  {:>10}  {:>10}  {:>10}  {:>11}", rank,
                       number_text(one.span()), number_text(one.busy), number_text(one.idle()),
                       number_text(one.exposed_communication), one.peak_activations.amount);
    out << (sizes ? fmt::format("  {:>12.1f}\n", one.peak_bytes.amount / (1 << 20)) : "\n");
  }
}

void print_text(const Input& input, const Simulation& simulation,
                const schedule::ChannelGraph& graph, const std::optional<schedule::Spread>& spread,
                std::ostream& out) {
  const ir::Schedule& schedule = input.schedule();
  const schedule::Report& report = simulation.report;
  const std::string unit = simulation.costs.unit.empty() ? "" : " " + simulation.costs.unit;
  const schedule::VerifyOptions channels = schedule::options_of(schedule.lowering);
  out << fmt::format("{}: {}, {}\n", input.name, shape_text(schedule),
                     std::holds_alternative<ir::Program>(input.any())
                         ? ir::describe_channels(channels.channels, channels.capacity)
                         : "ideal transfers");
  out << fmt::format("makespan       {}{}\n", number_text(report.makespan), unit);
  out << fmt::format("cost           {}{}, the longest span of any rank\n",
                     number_text(report.cost), unit);
  out << fmt::format("bubble rate    {:.4f}\n", report.bubble_rate);
  out << fmt::format("critical path  {}\n", path_text(schedule, simulation, graph));
  const double gap = simulation.bound->gap(report.cost);
  out << fmt::format("lower bound    {}{}, {}: {}\n", number_text(simulation.bound->value), unit,
                     bound_text(*simulation.bound),
                     gap == 0 ? "this cost is optimal for its work and memory"
                              : fmt::format("the cost is {} above it", percent_text(gap)));
  const std::vector<schedule::ReceiveSlots> slots = receive_slots_of(input);
  if (!slots.empty()) print_receive_slots(slots, out);
  if (spread)
    out << fmt::format(
        "with jitter    {}: makespan {} to {}, median {}, mean {} +- {}, 95% below {}\n",
        ir::counted(spread->runs, "run", "runs"), number_text(spread->least),
        number_text(spread->most), number_text(spread->median), number_text(spread->mean),
        number_text(spread->deviation), number_text(spread->percentile_95));
  out << '\n';
  print_rank_table(simulation, out);
}

}  // namespace

int run_simulate(const Invocation& invocation, Console& console) {
  if (invocation.has("--actions") && !invocation.has("--json"))
    throw UsageError("--actions requires --json");
  const std::optional<Jitter> jitter = jitter_of(invocation);
  AskedCosts asked = read_costs(invocation, console);
  asked.request.memory = memory_of(invocation, asked.request.costs);
  Input input = read_input(invocation, console);
  input.may_ignore_memory = true;
  input.costs = asked.request.costs;
  compile_input(invocation, {.of_name = std::nullopt}, schedule::Depth::kVerify, &input, console);
  const ir::Diagnostics& diagnostics = input.compiled.diagnostics;
  if (!input.compiled.ok() && invocation.has("--json") &&
      exit_code_of(diagnostics) == kExitInvalid) {
    print_invalid_json(diagnostics, console);
    return kExitInvalid;
  }
  require_ok(input, console);
  take_recorded_costs(invocation, input, &asked);
  const Simulation simulation = simulate_input(input, asked, console, invocation.has("--json"));
  std::optional<Simulation> measured;
  std::optional<RunPair> drift;
  if (input.compiled.recording) {
    measured = recorded_run_of(input, asked, console);
    drift.emplace(RunPair{input.schedule(), simulation, *measured, baseline_of(asked, input)});
  }
  const schedule::ChannelGraph graph = schedule::graph_of(input.any());
  std::optional<schedule::Spread> spread;
  if (jitter)
    spread = schedule::spread_of_makespan(graph, input.schedule(), simulation.costs, jitter->sigma,
                                          jitter->runs, jitter->seed);
  if (invocation.has("--json")) {
    print_json(invocation, input, simulation, graph, spread, drift, console.out);
    return kExitOk;
  }
  print_text(input, simulation, graph, spread, console.out);
  if (drift) {
    console.out << "\nrecorded run\n";
    print_drift(*drift, console.out);
  }
  return kExitOk;
}

}  // namespace pipewright::cli
