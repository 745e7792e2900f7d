#include "pipewright/cli/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <string_view>
#include <utility>

#include "pipewright/cli/files.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/render.h"
#include "pipewright/ir/text/schedule_json.h"
#include "pipewright/schedule/problem/costs_json.h"
#include "pipewright/schedule/simulate/recorded_costs.h"

namespace pipewright::cli {
namespace {

double time_of(const std::string& option, std::string_view text) {
  return number_of<double>(option, text, schedule::cost_in_words(), schedule::is_cost);
}

// "NAME=FACTOR,NAME=FACTOR"
std::vector<std::pair<std::string, double>> factors(const std::string& option,
                                                    std::string_view text) {
  std::vector<std::pair<std::string, double>> all;
  for (bool more = true; more;) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view one = text.substr(0, comma);
    const size_t equals = one.find('=');
    if (equals == std::string_view::npos) throw wrong_value(option, "NAME=FACTOR", one);
    all.emplace_back(one.substr(0, equals), time_of(option, one.substr(equals + 1)));
    more = comma < text.size();
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return all;
}

// Errors without a place are those of options, not of the file.
[[noreturn]] void fail_for_costs(const ir::Diagnostics& diagnostics, const AskedCosts& asked,
                                 Console& console) {
  ir::Diagnostics in_file, in_options;
  for (const ir::Diagnostic& one : diagnostics.kept())
    (one.place.offset ? in_file : in_options).error(one.rule, one.message, one.place).help =
        one.help;
  if (in_file.has_errors())
    print_diagnostics(in_file, &*asked.file, ir::printable(asked.file->name), console);
  if (in_options.has_errors()) print_diagnostics(in_options, nullptr, "the costs", console);
  throw Failed{kExitTrouble};
}

// The costs of the recording in a schedule file that --costs names.
schedule::Costs costs_of_schedule(const ir::Source& file, Console& console) {
  const std::string name = ir::printable(file.name);
  const schedule::CompileResult compiled =
      schedule::compile({.source = &file, .level = {}, .depth = schedule::Depth::kVerify});
  if (!compiled.ok()) {
    print_diagnostics(compiled.diagnostics, &file, name, console);
    throw Failed{kExitTrouble};
  }
  if (!compiled.recording)
    throw UsageError(
        fmt::format("--costs: expected a costs file or a schedule with a recording, got {}, a "
                    "schedule without one",
                    name));
  return schedule::recorded_costs(ir::schedule_of(*compiled.schedule), *compiled.recording);
}

// The options for single times, and the costs that they replace.
struct TimeOption {
  std::string_view name;
  std::string_view key;  // in a costs file
  std::string_view help;
  void (*set)(schedule::Costs*, double);
};
constexpr TimeOption kTimeOptions[] = {
    {"--forward", "forward", "time of F; default: 1",
     [](schedule::Costs* costs, double time) { costs->forward = time; }},
    {"--backward-input", "backward_input", "time of I; default: 1. B takes I + W",
     [](schedule::Costs* costs, double time) { costs->backward_input = time; }},
    {"--backward-weight", "backward_weight", "time of W; default: 1",
     [](schedule::Costs* costs, double time) { costs->backward_weight = time; }},
    {"--comm", "latency", "time of a transfer between two ranks; default: 0",
     [](schedule::Costs* costs, double time) { costs->link.latency = time; }},
};

// Replaces the times that are given one by one. Such a time no longer has a place in the file.
void set_single_times(const Invocation& invocation, schedule::SimulateRequest* request) {
  for (const TimeOption& option : kTimeOptions) {
    const std::string name(option.name);
    const auto text = invocation.text(name);
    if (!text) continue;
    option.set(&request->costs, time_of(name, *text));
    request->places.values.erase(std::string(option.key));
  }
}

// The simulation of a request for these costs. Throws Failed after printing its errors.
Simulation take(schedule::SimulateResult result, const AskedCosts& asked, Console& console) {
  if (!result.ok()) fail_for_costs(result.diagnostics, asked, console);
  return std::move(*result.simulation);
}

}  // namespace

std::vector<OptionSpec> cost_options() {
  std::vector<OptionSpec> options = {
      file_option("--costs", "FILE",
                  "costs of actions, as JSON (schedule/problem/COSTS.md), or a schedule with a "
                  "recording, which has their costs; the times below replace single ones")};
  for (const TimeOption& time : kTimeOptions)
    options.push_back({time.name, "", {ValueKind::kText, "T", {}}, time.help});
  options.push_back(
      {"--scale",
       "",
       {ValueKind::kText, "KIND=X", {}},
       "what if: multiply a cost by X; KIND is F, B, I, W, UNSHARD, RESHARD, REDUCE_GRAD or COMM; "
       "may be repeated, or separate several by commas; factors of one cost multiply",
       true});
  options.push_back({"--slow",
                     "",
                     {ValueKind::kText, "RANK=X", {}},
                     "what if: a rank takes X times as long; may be repeated, or separate several "
                     "by commas; factors of one rank multiply",
                     true});
  return options;
}

bool has_cost_options(const Invocation& invocation) {
  return std::ranges::any_of(cost_options(), [&](const OptionSpec& option) {
    return invocation.has(std::string(option.name));
  });
}

void refuse_cost_options(const Invocation& invocation, std::string_view required) {
  for (const OptionSpec& option : cost_options()) {
    if (invocation.has(std::string(option.name)))
      throw UsageError(fmt::format("{} requires {}", option.name, required));
  }
}

AskedCosts read_costs(const Invocation& invocation, Console& console) {
  AskedCosts asked;
  if (const auto path = invocation.text("--costs")) {
    asked.file = read_source(*path, console);
    if (ir::is_schedule_json(*asked.file)) {
      asked.request.costs = costs_of_schedule(*asked.file, console);
      asked.recorded_in = ir::printable(asked.file->name);
    } else {
      ir::Diagnostics diagnostics;
      auto parsed = schedule::parse_costs(*asked.file, &diagnostics);
      if (!parsed) {
        print_diagnostics(diagnostics, &*asked.file, ir::printable(asked.file->name), console);
        throw Failed{kExitTrouble};
      }
      asked.request.costs = std::move(parsed->costs);
      asked.request.places = std::move(parsed->places);
    }
  }
  set_single_times(invocation, &asked.request);
  if (const auto text = invocation.text("--scale")) asked.request.scale = factors("--scale", *text);
  if (const auto text = invocation.text("--slow")) {
    for (const auto& [rank, factor] : factors("--slow", *text))
      asked.request.slow.emplace_back(
          number_of<int>("--slow", rank, "a rank", [](int one) { return one >= 0; }), factor);
  }
  return asked;
}

void take_recorded_costs(const Invocation& invocation, const Input& input, AskedCosts* asked) {
  if (invocation.has("--costs") || !input.compiled.recording) return;
  asked->request.costs = schedule::recorded_costs(input.schedule(), *input.compiled.recording);
  asked->recorded_in = input.name;
  set_single_times(invocation, &asked->request);
}

schedule::MemoryBudget memory_of(const Invocation& invocation, const schedule::Costs& costs) {
  const auto activations = invocation.text("--memory"), bytes = invocation.text("--memory-bytes");
  if (activations && bytes) throw UsageError("--memory cannot be used with --memory-bytes");
  if (activations) return {.activations = memory_number("--memory", *activations)};
  if (!bytes) return {};
  if (costs.activation_bytes.is_zero())
    throw UsageError("--memory-bytes requires --costs FILE with activation_bytes");
  return {.bytes = memory_number("--memory-bytes", *bytes)};
}

void print_invalid_json(const ir::Diagnostics& diagnostics, Console& console) {
  console.out << fmt::format(
      "{{\n  \"version\": 1,\n  \"makespan\": null,\n  \"diagnostics\": {}\n}}\n",
      ir::diagnostics_json(diagnostics, 2));
}

Simulation simulate_input(const Input& input, const AskedCosts& asked, Console& console,
                          bool as_json) {
  schedule::SimulateResult result = schedule::simulate(input.compiled, asked.request);
  if (!result.ok() && result.diagnostics.kept().front().rule == ir::Rule::kMemoryExceeded) {
    if (as_json) {
      print_invalid_json(result.diagnostics, console);
    } else {
      print_diagnostics(result.diagnostics, input.file ? &*input.file : nullptr, input.name,
                        console);
    }
    throw Failed{kExitInvalid};
  }
  return take(std::move(result), asked, console);
}

Simulation recorded_run_of(const Input& input, const AskedCosts& asked, Console& console) {
  schedule::SimulateRequest request;
  if (asked.file) {
    request.costs = asked.request.costs;
    request.places = asked.request.places;
  } else {
    request.costs = schedule::recorded_costs(input.schedule(), *input.compiled.recording);
  }
  return take(schedule::recorded_run(input.compiled, request), asked, console);
}

schedule::Baseline baseline_of(const AskedCosts& asked, const Input& measured) {
  return asked.recorded_in == measured.name ? schedule::Baseline::kMedianOfKind
                                            : schedule::Baseline::kPredicted;
}

schedule::BlockedSimulation simulate_blocked_input(const Input& input, const AskedCosts& asked,
                                                   Console& console) {
  ir::Diagnostics diagnostics;
  std::optional<schedule::BlockedSimulation> simulation =
      schedule::simulate_blocked(input.compiled, asked.request, &diagnostics);
  if (!simulation) fail_for_costs(diagnostics, asked, console);
  return std::move(*simulation);
}

Simulation simulate_source(const Invocation& invocation, Console& console,
                           std::optional<ir::Level> level_of_name, Input* input) {
  const AskedCosts asked = read_costs(invocation, console);
  *input = read_input(invocation, console);
  input->costs = asked.request.costs;
  compile_input(invocation, {.of_name = level_of_name}, schedule::Depth::kVerify, input, console);
  require_ok(*input, console);
  return simulate_input(*input, asked, console);
}

std::span<const std::string_view> picture_formats() {
  static constexpr std::string_view kFormats[] = {"timeline", "svg",    "html", "trace",
                                                  "pftrace",  "kineto", "dot"};
  return kFormats;
}

std::string number_text(double number) { return fmt::format("{:.6g}", number); }

std::string activations_text(double number) {
  return number_text(number) + (number == 1 ? " activation" : " activations");
}

std::string percent_text(double fraction) { return fmt::format("{:.1f}%", 100 * fraction); }

}  // namespace pipewright::cli
