#ifndef PIPEWRIGHT_CLI_SIMULATION_H_
#define PIPEWRIGHT_CLI_SIMULATION_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/console.h"
#include "pipewright/cli/input.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/simulate/costs.h"
#include "pipewright/schedule/simulate/event_graph.h"
#include "pipewright/schedule/simulate/report.h"

// Costs, and what comes of them, for every command that simulates.

namespace pipewright::cli {

// --costs, --forward, ..., --comm, --scale, --slow.
std::vector<OptionSpec> cost_options();

// A schedule that has run: its costs, what waits for what, and when.
struct Simulation {
  schedule::Costs costs;
  schedule::EventGraph graph;
  ir::Timeline timeline;
  schedule::Report report;
};

// What actions cost, as --costs or the flags say, and where that stands.
struct AskedCosts {
  schedule::Costs costs;
  std::string file = "costs";
};
AskedCosts read_costs(const Invocation& invocation, Console& console);
// A usage error if any of cost_options() was given: "--costs goes with a picture".
void refuse_cost_options(const Invocation& invocation, std::string_view wanted);

// Simulates what lower_input left: an order with ideal transfers, a program under its channels.
// None where the schedule is wrong: the errors are in `input` then.
std::optional<Simulation> simulate_input(const Invocation& invocation, const AskedCosts& asked,
                                         Input* input);

// Reads, lowers and simulates SOURCE: a file at its own level, a name at `level_of_name`, unless
// --level says otherwise. None where it is wrong, and that is printed.
std::optional<Simulation> simulate_source(const Invocation& invocation, Console& console,
                                          ir::Level level_of_name, Input* input);

// Formats of `print` that need a simulation.
std::span<const std::string_view> picture_formats();

// "12.5", "0.3333": up to six digits, as results show times.
std::string number_text(double number);

// "25.0%"
std::string percent_text(double fraction);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_SIMULATION_H_
