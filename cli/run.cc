#include "pipewright/cli/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <ostream>
#include <string_view>
#include <utility>
#include <variant>

#include "pipewright/cli/files.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/cli/json.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/printable.h"
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
    if (option.key != "latency" && !request->costs.layers.empty())
      throw UsageError(fmt::format("{} cannot be used with layers in --costs", name));
    option.set(&request->costs, time_of(name, *text));
    request->places.values.erase(std::string(option.key));
  }
}

void take_recording(const Invocation& invocation, const std::string& name,
                    const ir::Schedule& schedule, const ir::Recording& recording,
                    AskedCosts* asked) {
  if (invocation.has("--costs")) return;
  asked->request.costs = schedule::recorded_costs(schedule, recording);
  asked->request.with_copies = false;
  asked->recorded_in = name;
  set_single_times(invocation, &asked->request);
}

}  // namespace

std::vector<int> counts(const std::string& option, std::string_view text,
                        std::string_view expected) {
  std::vector<int> all;
  for (bool more = true; more;) {
    const size_t comma = std::min(text.find(','), text.size());
    all.push_back(number_of<int>(option, text.substr(0, comma), expected,
                                 [](int number) { return number >= 0; }));
    more = comma < text.size();
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return all;
}

std::vector<OptionSpec> cost_options() {
  std::vector<OptionSpec> options = {
      file_option("--costs", "FILE",
                  "costs of actions, as JSON (schedule/problem/COSTS.md), or a schedule with a "
                  "recording, which has their costs; the times below replace single ones")};
  for (const TimeOption& time : kTimeOptions)
    options.push_back({time.name, "", {ValueKind::kText, "T", {}}, time.help});
  options.push_back(
      {"--cut",
       "",
       {ValueKind::kText, "N,N,...", {}},
       "how many layers of --costs each stage has; default: the schedule's own cut, or "
       "an even one"});
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

std::optional<std::string> given_cost_option(const Invocation& invocation) {
  for (const OptionSpec& option : cost_options()) {
    if (std::string name(option.name); invocation.has(name)) return name;
  }
  return std::nullopt;
}

AskedCosts read_costs(const Invocation& invocation, Console& console) {
  AskedCosts asked;
  if (const auto path = invocation.text("--costs")) {
    asked.file = read_source(*path, console);
    if (ir::is_schedule_json(*asked.file)) {
      asked.request.costs = costs_of_schedule(*asked.file, console);
      asked.request.with_copies = false;
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
  if (const auto text = invocation.text("--cut")) {
    if (asked.request.costs.layers.empty())
      throw UsageError("--cut requires --costs FILE with layers");
    asked.request.costs.cut = counts("--cut", *text);
    asked.request.places.values.erase("cut");
  }
  if (const auto text = invocation.text("--scale")) asked.request.scale = factors("--scale", *text);
  if (const auto text = invocation.text("--slow")) {
    for (const auto& [rank, factor] : factors("--slow", *text))
      asked.request.slow.emplace_back(
          number_of<int>("--slow", rank, "a rank", [](int one) { return one >= 0; }), factor);
  }
  return asked;
}

void take_recorded_costs(const Invocation& invocation, const Input& input, AskedCosts* asked) {
  const ir::Recording* recording = input.source.ok() ? input.source.recording() : nullptr;
  if (recording == nullptr) return;
  const auto& parsed = std::get<ir::ParsedSchedule>(input.source.schedule);
  take_recording(invocation, input.name, ir::schedule_of(parsed.schedule), *recording, asked);
}

schedule::MemoryBudget memory_of(const Invocation& invocation, const schedule::Costs& costs) {
  const auto activations = invocation.text("--memory"), bytes = invocation.text("--memory-bytes");
  if (activations && bytes) throw UsageError("--memory cannot be used with --memory-bytes");
  if (activations) return {.activations = memory_numbers("--memory", *activations)};
  if (!bytes) return schedule::budget_of({}, costs);
  if (costs.activation_bytes.is_zero() && costs.layers.empty())
    throw UsageError("--memory-bytes requires --costs FILE with activation_bytes");
  return {.bytes = memory_numbers("--memory-bytes", *bytes)};
}

namespace {

// Those of --recompute and --offload in place of those that the source names.
void choose_stages(const Invocation& invocation, ir::Schedule* schedule) {
  const int num_stages = schedule->placement.num_stages();
  const auto choose = [&](const std::string& option, std::vector<int>* stages) {
    const auto text = invocation.text(option);
    if (!text) return;
    if (*text == "all") {
      stages->resize(static_cast<size_t>(num_stages));
      std::iota(stages->begin(), stages->end(), 0);
      return;
    }
    const std::string expected = fmt::format(
        "`all`, or different stages from 0 to {} in ascending order with commas between",
        num_stages - 1);
    *stages = counts(option, *text, expected);
    if (!ir::are_ascending_stages(*stages, num_stages)) throw wrong_value(option, expected, *text);
  };
  choose("--recompute", &schedule->recompute);
  choose("--offload", &schedule->offload);
}

}  // namespace

Run::Run(const Invocation& invocation, Console& console, Input input, AskedCosts costs,
         const RunOptions& options)
    : invocation_(invocation),
      console_(console),
      input_(std::move(input)),
      costs_(std::move(costs)) {
  const auto level = invocation.text("--level");
  compiled_ = schedule::compile({.source = std::move(input_.source),
                                 .costs = costs_.request.costs,
                                 .policies = policies_of(invocation),
                                 .level = level         ? ir::parse_level(*level)
                                          : input_.file ? options.level_of_file
                                                        : options.level_of_name,
                                 .depth = options.depth,
                                 .observer = options.observer});
  for (std::optional<ir::AnySchedule>* one : {&compiled_.schedule, &compiled_.blocked}) {
    if (!*one) continue;
    std::visit([&](auto& schedule) { choose_stages(invocation, &schedule); }, **one);
  }
  if (!input_.file && ok()) input_.name = schedule().name;
  if (compiled_.lost_recording)
    console.err << fmt::format("note: the recording of {} is left out: it is of another order\n",
                               name());
  for (const schedule::OverriddenPolicy& one : compiled_.overridden) {
    const bool is_flag = ir::find_lowering_policy(one.name)->values.kind == ir::PolicyKind::kFlag;
    console.err << fmt::format("note: --{}{} overrides `{}: {}` of {}\n", one.name,
                               is_flag ? "" : " " + one.requested, one.name, one.recorded, name());
  }
  if (is_recorded() && costs_.recorded_in.empty())
    take_recording(invocation, name(), schedule(), *compiled_.recording, &costs_);
}

int Run::exit_code() const { return ok() ? kExitOk : exit_code_of(compiled_.diagnostics); }

void Run::print_diagnostics(const ir::Diagnostics& diagnostics) const {
  cli::print_diagnostics(diagnostics, input_.file.get(), name(), console_);
}

void Run::require_ok() const {
  if (ok()) return;
  print_diagnostics();
  throw Failed{exit_code()};
}

Simulation Run::predicted() const {
  schedule::SimulateResult result = schedule::simulate(compiled_, costs_.request);
  if (!result.ok() && result.diagnostics.kept().front().rule == ir::Rule::kMemoryExceeded) {
    if (invocation_.has("--json")) {
      print_invalid_json(result.diagnostics, console_);
    } else {
      print_diagnostics(result.diagnostics);
    }
    throw Failed{kExitInvalid};
  }
  return take(std::move(result));
}

Simulation Run::recorded() const {
  schedule::SimulateRequest request{.with_bound = false};
  if (costs_.file) {
    request.costs = costs_.request.costs;
    request.places = costs_.request.places;
  } else {
    request.costs = schedule::recorded_costs(schedule(), *compiled_.recording);
  }
  return take(schedule::recorded_run(compiled_, request));
}

schedule::BlockedSimulation Run::blocked() const {
  ir::Diagnostics diagnostics;
  std::optional<schedule::BlockedSimulation> simulation =
      schedule::simulate_blocked(compiled_, costs_.request, &diagnostics);
  if (!simulation) fail_for_costs(diagnostics);
  return std::move(*simulation);
}

schedule::Baseline Run::baseline() const {
  return costs_.recorded_in == name() ? schedule::Baseline::kMedianOfKind
                                      : schedule::Baseline::kPredicted;
}

Simulation Run::take(schedule::SimulateResult result) const {
  if (!result.ok()) fail_for_costs(result.diagnostics);
  return std::move(*result.simulation);
}

// Errors without a place are those of options, not of the file.
void Run::fail_for_costs(const ir::Diagnostics& diagnostics) const {
  ir::Diagnostics in_file, in_options;
  for (const ir::Diagnostic& one : diagnostics.kept())
    (one.place.offset ? in_file : in_options).error(one.rule, one.message, one.place).help =
        one.help;
  if (in_file.has_errors())
    cli::print_diagnostics(in_file, &*costs_.file, ir::printable(costs_.file->name), console_);
  if (in_options.has_errors()) cli::print_diagnostics(in_options, nullptr, "the costs", console_);
  throw Failed{kExitTrouble};
}

void print_invalid_json(const ir::Diagnostics& diagnostics, Console& console) {
  print_json(
      {{"version", 1}, {"makespan", nullptr}, {"diagnostics", diagnostics_json(diagnostics)}},
      console.out);
}

std::string StageRatio::text() const {
  return fmt::format(
      "compared as one model: a stage of the second is {}/{} of a stage of the first, in time and "
      "in activations",
      before, after);
}

StageRatio scale_stages(const Invocation& invocation, int before, int after, AskedCosts* costs) {
  if (!costs->recorded_in.empty()) return {};
  for (const char* option : {"--costs", "--forward", "--backward-input", "--backward-weight"}) {
    if (invocation.has(option)) return {};
  }
  const StageRatio ratio{before, after};
  for (const char* cost : {"F", "I", "W"})
    schedule::scale_cost(cost, ratio.value(), &costs->request.costs);
  return ratio;
}

}  // namespace pipewright::cli
