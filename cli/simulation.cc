#include "pipewright/cli/simulation.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>
#include <variant>

#include "pipewright/cli/files.h"
#include "pipewright/cli/usage_error.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/spelling.h"
#include "pipewright/schedule/simulate/costs_json.h"
#include "pipewright/schedule/simulate/simulate.h"
#include "pipewright/schedule/verify/verify.h"

namespace pipewright::cli {
namespace {

double time_of(const std::string& option, std::string_view text) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || !schedule::is_cost(value))
    throw UsageError(fmt::format("{} wants 0, or a number from {} to {}, found {}", option,
                                 schedule::kLeastCost, schedule::kMostCost, ir::backticked(text)));
  return value;
}

// "NAME=FACTOR,NAME=FACTOR"
std::vector<std::pair<std::string, double>> factors(const std::string& option,
                                                    std::string_view text) {
  std::vector<std::pair<std::string, double>> all;
  for (bool more = true; more;) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view one = text.substr(0, comma);
    const size_t equals = one.find('=');
    if (equals == std::string_view::npos)
      throw UsageError(fmt::format("{} wants NAME=FACTOR, found {}", option, ir::backticked(one)));
    all.emplace_back(one.substr(0, equals), time_of(option, one.substr(equals + 1)));
    more = comma < text.size();
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return all;
}

// What --scale and --slow change.
void change_costs(const Invocation& invocation, const ir::Placement& placement,
                  schedule::Costs* costs) {
  if (const auto text = invocation.text("--scale")) {
    for (const auto& [name, factor] : factors("--scale", *text)) {
      if (schedule::scale_cost(name, factor, costs)) continue;
      throw UsageError(fmt::format("--scale knows no {}; it knows {}", ir::backticked(name),
                                   fmt::join(schedule::scalable_costs(), ", ")));
    }
  }
  if (const auto text = invocation.text("--slow")) {
    for (const auto& [name, factor] : factors("--slow", *text)) {
      int rank = -1;
      const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), rank);
      if (error != std::errc() || stop != name.data() + name.size() || rank < 0 ||
          rank >= placement.num_ranks())
        throw UsageError(fmt::format("--slow wants a rank from 0 to {}, found {}",
                                     placement.num_ranks() - 1, ir::backticked(name)));
      schedule::slow_rank(rank, factor, placement, costs);
    }
  }
}

std::optional<schedule::EventGraph> graph_of(Input* input) {
  if (const auto* order = std::get_if<ir::ComputeOrder>(&*input->schedule)) {
    if (!schedule::verify(*order, &input->diagnostics)) return std::nullopt;
    return schedule::EventGraph::of_order(*order);
  }
  const auto& program = std::get<ir::Program>(*input->schedule);
  const schedule::VerifyOptions options = schedule::options_of(program.lowering);
  if (!schedule::verify(program, options, &input->diagnostics)) return std::nullopt;
  return schedule::EventGraph::of_program(program, options.channels, options.capacity);
}

}  // namespace

std::vector<OptionSpec> cost_options() {
  const auto time = [](std::string_view name, std::string_view help) {
    return OptionSpec{name, "", {ValueKind::kText, "T", {}}, help};
  };
  return {
      {"--costs",
       "",
       {ValueKind::kFile, "FILE", {}},
       "what actions cost, as JSON: schedule/COSTS.md"},
      time("--forward", "time of a stage's F; by default 1"),
      time("--backward-input", "time of I; by default 1. B takes I + W"),
      time("--backward-weight", "time of W; by default 1"),
      time("--comm", "time of a transfer between ranks; by default 0"),
      {"--scale",
       "",
       {ValueKind::kText, "KIND=X", {}},
       "what if: a cost times X; F, B, I, W, UNSHARD, RESHARD, REDUCE_GRAD, COMM; several with "
       "commas"},
      {"--slow", "", {ValueKind::kText, "RANK=X", {}}, "what if: a rank takes X times as long"},
  };
}

void refuse_cost_options(const Invocation& invocation, std::string_view wanted) {
  for (const OptionSpec& option : cost_options()) {
    if (invocation.has(std::string(option.name)))
      throw UsageError(fmt::format("{} goes with {}", option.name, wanted));
  }
}

AskedCosts read_costs(const Invocation& invocation, Console& console) {
  AskedCosts asked;
  schedule::Costs& costs = asked.costs;
  if (const auto path = invocation.text("--costs")) {
    for (const char* option : {"--forward", "--backward-input", "--backward-weight", "--comm"}) {
      if (invocation.has(option))
        throw UsageError(fmt::format("{} and --costs both say what things cost", option));
    }
    const ir::Source source = read_source(*path, console);
    asked.file = ir::printable(source.name);
    auto parsed = schedule::parse_costs(source.text);
    if (const auto* error = std::get_if<std::string>(&parsed))
      throw UsageError(fmt::format("{}: {}", asked.file, *error));
    costs = std::move(std::get<schedule::Costs>(parsed));
  }
  const auto set = [&](const std::string& option, schedule::PerStage* cost) {
    if (const auto text = invocation.text(option)) *cost = time_of(option, *text);
  };
  set("--forward", &costs.forward);
  set("--backward-input", &costs.backward_input);
  set("--backward-weight", &costs.backward_weight);
  if (const auto text = invocation.text("--comm")) costs.link.latency = time_of("--comm", *text);
  return asked;
}

std::optional<Simulation> simulate_input(const Invocation& invocation, const AskedCosts& asked,
                                         Input* input) {
  if (!input->schedule) return std::nullopt;
  const ir::Schedule& schedule = ir::schedule_of(*input->schedule);
  if (const auto error =
          schedule::costs_error(asked.costs, schedule.placement, schedule.num_microbatches))
    throw UsageError(fmt::format("{}: {}", asked.file, *error));
  schedule::Costs costs = asked.costs;
  change_costs(invocation, schedule.placement, &costs);
  std::optional<schedule::EventGraph> graph = graph_of(input);
  if (!graph) {
    place_diagnostics(input);
    return std::nullopt;
  }
  ir::Timeline timeline = schedule::simulate(*graph, schedule, costs);
  schedule::Report report = schedule::report_on(schedule, costs, timeline);
  return Simulation{std::move(costs), std::move(*graph), std::move(timeline), std::move(report)};
}

std::optional<Simulation> simulate_source(const Invocation& invocation, Console& console,
                                          ir::Level level_of_name, Input* input) {
  read_input(invocation, console, input);
  lower_input(invocation, own_level(*input, level_of_name), nullptr, input);
  std::optional<Simulation> simulation =
      simulate_input(invocation, read_costs(invocation, console), input);
  if (!simulation) print_diagnostics(*input, console);
  return simulation;
}

std::span<const std::string_view> picture_formats() {
  static constexpr std::string_view kFormats[] = {"timeline", "svg", "trace", "dot"};
  return kFormats;
}

std::string number_text(double number) { return fmt::format("{:.6g}", number); }

std::string percent_text(double fraction) { return fmt::format("{:.1f}%", 100 * fraction); }

}  // namespace pipewright::cli
