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
#include "pipewright/cli/json.h"
#include "pipewright/cli/run.h"
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

// A simulation and what is derived from it.
struct Result {
  const Run& run;
  const Simulation& simulation;
  const schedule::ChannelGraph graph = schedule::graph_of(run.any());
  const std::vector<schedule::CriticalStep> path =
      schedule::critical_path(graph, run.schedule(), simulation.costs, simulation.timeline);
  // By rank; empty for a compute order, which has no RECVs.
  const std::vector<schedule::ReceiveSlots> slots = run.program()
                                                        ? schedule::receive_slots(*run.program())
                                                        : std::vector<schedule::ReceiveSlots>();
  std::optional<schedule::Spread> spread = {};  // with --jitter
  std::optional<RunPair> drift = {};            // of a recorded run
};

// ---- JSON

// A step of a rank, and when it runs.
void add_action(const Result& result, size_t rank, size_t step, Json* json) {
  const ir::Interval& interval = result.simulation.timeline.at(rank, step);
  (*json)["step"] = step;
  (*json)["action"] = ir::to_string(result.run.schedule().rows[rank][step]);
  (*json)["start"] = interval.start;
  (*json)["end"] = interval.end;
}

Json actions_json(const Result& result, const std::vector<double>& slack, size_t rank) {
  const ir::Row& row = result.run.schedule().rows[rank];
  Json all = Json::array();
  for (size_t step = 0; step < row.size(); ++step) {
    if (row[step].is_idle()) continue;
    Json& json = all.emplace_back();
    add_action(result, rank, step, &json);
    json["slack"] = slack[result.simulation.timeline.index(rank, step)];
  }
  return all;
}

// What is in use at the peak of bytes, by use.
Json memory_json(const schedule::MemoryParts& memory) {
  Json json;
  for (size_t use = 0; use < std::size(schedule::kMemoryUses); ++use)
    json[std::string(schedule::kMemoryUses[use])] = memory.bytes[use];
  return json;
}

Json ranks_json(const Result& result, bool with_actions) {
  const Simulation& simulation = result.simulation;
  const bool sizes = simulation.costs.has_sizes();
  std::vector<double> slack;
  if (with_actions)
    slack = schedule::slack_of(result.graph, result.run.schedule(), simulation.costs,
                               simulation.timeline);
  Json ranks = Json::array();
  for (size_t rank = 0; rank < simulation.report.ranks.size(); ++rank) {
    const RankReport& one = simulation.report.ranks[rank];
    ranks.push_back(
        {{"span", one.span()},
         {"busy", one.busy},
         {"idle", one.idle()},
         {"exposed_communication", one.exposed_communication},
         {"peak_activations", one.peak_activations.amount},
         {"peak_activations_step", or_null(one.peak_activations.step)},
         {"peak_bytes", sizes ? Json(one.peak_bytes.amount) : Json(nullptr)},
         {"peak_bytes_step", sizes ? or_null(one.peak_bytes.step) : Json(nullptr)},
         {"memory", sizes ? memory_json(one.memory) : Json(nullptr)},
         {"receive_slots",
          result.slots.empty() ? Json(nullptr) : receive_slots_json(result.slots[rank])}});
    if (with_actions) ranks.back()["actions"] = actions_json(result, slack, rank);
  }
  return ranks;
}

Json path_json(const Result& result) {
  return list_json(result.path, [&](const schedule::CriticalStep& step) {
    Json json;
    json["rank"] = step.rank;
    add_action(result, static_cast<size_t>(step.rank), static_cast<size_t>(step.step), &json);
    return json;
  });
}

Json spread_json(const schedule::Spread& spread) {
  return {{"runs", spread.runs},
          {"min", spread.least},
          {"median", spread.median},
          {"mean", spread.mean},
          {"deviation", spread.deviation},
          {"percentile_95", spread.percentile_95},
          {"max", spread.most}};
}

void print_json(const Result& result, bool with_actions, std::ostream& out) {
  const Simulation& simulation = result.simulation;
  const schedule::Report& report = simulation.report;
  const schedule::ScheduleBound& bound = *simulation.bound;
  const schedule::VerifyOptions channels = schedule::options_of(result.run.schedule().lowering);
  const bool is_program = result.run.program() != nullptr;
  Json json = {{"version", 1},
               {"level", ir::name(ir::level_of(result.run.any()))},
               {"channels", is_program ? Json(ir::name(channels.channels)) : Json(nullptr)},
               {"capacity", is_program ? capacity_json(channels.capacity) : Json(nullptr)},
               {"unit", or_null(simulation.costs.unit)},
               {"makespan", report.makespan},
               {"cost", report.cost},
               {"bubble_rate", report.bubble_rate},
               {"memory_limits", bound.memory_limits},
               {"memory_per_stage",
                {{"activation", bound.activations},
                 {"weight_input", bound.weight_inputs},
                 {"recomputed", bound.recomputed}}},
               {"bound", bound_json(bound, [](double time) { return time; })},
               {"gap", bound.gap(report.cost)},
               {"jitter", result.spread ? spread_json(*result.spread) : Json(nullptr)},
               {"ranks", ranks_json(result, with_actions)},
               {"critical_path", path_json(result)}};
  if (result.drift) json["drift"] = drift_json(*result.drift);
  json["diagnostics"] = Json::array();
  cli::print_json(json, out);
}

// ---- text

// "F 12 + B 21 + transfers 3 + copies 4": where the time of the critical path goes.
std::string path_text(const Result& result) {
  std::map<ir::ActionKind, double> by_kind;
  double transfers = 0, copies = 0;
  for (const schedule::CriticalStep& step : result.path) {
    const auto rank = static_cast<size_t>(step.rank), at = static_cast<size_t>(step.step);
    const ir::ActionKind kind = result.run.schedule().rows[rank][at].kind();
    const double duration = result.simulation.timeline.at(rank, at).duration();
    transfers += step.transfer;
    copies += step.copies;
    if (ir::is_send(kind)) {
      transfers += duration;
    } else if (!ir::is_receive(kind)) {
      by_kind[kind] += duration;
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
  const auto line = [&](const auto&... columns) {
    out << fmt::format("{:>4}  {:>10}  {:>10}  {:>10}  {:>10}  {:>11}", columns...);
  };
  line("rank", "span", "busy", "idle", "exposed", "activations");
  out << '\n';
  for (size_t rank = 0; rank < simulation.report.ranks.size(); ++rank) {
    const RankReport& one = simulation.report.ranks[rank];
    line(rank, number_text(one.span()), number_text(one.busy), number_text(one.idle()),
         number_text(one.exposed_communication), one.peak_activations.amount);
    out << '\n';
  }
}

// What the memory of each rank is used for at its peak.
void print_memory_table(const Simulation& simulation, std::ostream& out) {
  out << "\npeak memory, in MiB\nrank";
  for (const std::string_view use : schedule::kMemoryUses) out << fmt::format("  {:>11}", use);
  out << fmt::format("  {:>11}\n", "sum");
  for (size_t rank = 0; rank < simulation.report.ranks.size(); ++rank) {
    const RankReport& one = simulation.report.ranks[rank];
    out << fmt::format("{:>4}", rank);
    for (const double bytes : one.memory.bytes)
      out << fmt::format("  {:>11.1f}", bytes / (1 << 20));
    out << fmt::format("  {:>11.1f}\n", one.peak_bytes.amount / (1 << 20));
  }
}

void print_text(const Result& result, std::ostream& out) {
  const Simulation& simulation = result.simulation;
  const schedule::Report& report = simulation.report;
  const std::string unit = unit_text(simulation.costs.unit);
  const schedule::VerifyOptions channels = schedule::options_of(result.run.schedule().lowering);
  out << fmt::format("{}: {}, {}\n", result.run.name(), shape_text(result.run.schedule()),
                     result.run.program() != nullptr
                         ? ir::describe_channels(channels.channels, channels.capacity)
                         : "ideal transfers");
  out << fmt::format("makespan       {}{}\n", number_text(report.makespan), unit);
  out << fmt::format("cost           {}{}, the longest span of any rank\n",
                     number_text(report.cost), unit);
  out << fmt::format("bubble rate    {:.4f}\n", report.bubble_rate);
  out << fmt::format("critical path  {}\n", path_text(result));
  const schedule::ScheduleBound& bound = *simulation.bound;
  const double gap = bound.gap(report.cost);
  out << fmt::format("lower bound    {}{}, {}: {}\n", number_text(bound.value), unit,
                     bound_text(bound),
                     gap == 0 ? "this cost is optimal for its work and memory"
                              : fmt::format("the cost is {} above it", percent_text(gap)));
  if (!result.slots.empty()) print_receive_slots(result.slots, out);
  if (const auto& spread = result.spread)
    out << fmt::format(
        "with jitter    {}: makespan {} to {}, median {}, mean {} +- {}, 95% below {}\n",
        ir::counted(spread->runs, "run", "runs"), number_text(spread->least),
        number_text(spread->most), number_text(spread->median), number_text(spread->mean),
        number_text(spread->deviation), number_text(spread->percentile_95));
  out << '\n';
  print_rank_table(simulation, out);
  if (simulation.costs.has_sizes()) print_memory_table(simulation, out);
  if (!result.drift) return;
  out << "\nrecorded run\n";
  print_drift(*result.drift, out);
}

}  // namespace

int run_simulate(const Invocation& invocation, Console& console) {
  const bool as_json = invocation.has("--json");
  if (invocation.has("--actions") && !as_json) throw UsageError("--actions requires --json");
  const std::optional<Jitter> jitter = jitter_of(invocation);
  AskedCosts costs = read_costs(invocation, console);
  costs.request.memory = memory_of(invocation, costs.request.costs);
  costs.request.with_bound = true;
  const Run run(invocation, console,
                read_input(invocation, invocation.arguments[0], console, MemoryOption::kOfCommand),
                std::move(costs), {.level_of_name = std::nullopt});
  if (as_json && run.exit_code() == kExitInvalid) {
    print_invalid_json(run.compiled().diagnostics, console);
    return kExitInvalid;
  }
  run.require_ok();
  const Simulation simulation = run.predicted();
  Result result{run, simulation};
  std::optional<Simulation> measured;
  if (run.is_recorded()) {
    measured = run.recorded();
    result.drift.emplace(RunPair{run.schedule(), simulation, *measured, run.baseline()});
  }
  if (jitter)
    result.spread = schedule::spread_of_makespan(result.graph, run.schedule(), simulation.costs,
                                                 jitter->sigma, jitter->runs, jitter->seed);
  if (as_json) {
    print_json(result, invocation.has("--actions"), console.out);
  } else {
    print_text(result, console.out);
  }
  return kExitOk;
}

}  // namespace pipewright::cli
