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
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/simulate/drift.h"

// The cost options of all commands that simulate: turns command-line words into a call of
// schedule::simulate.

namespace pipewright::cli {

using schedule::Simulation;

// --costs, --forward, ..., --comm, --scale, --slow.
std::vector<OptionSpec> cost_options();

// Whether any of them was given.
bool has_cost_options(const Invocation& invocation);

// The costs given by --costs, and the single times that replace those of the file.
struct AskedCosts {
  std::optional<ir::Source> file;  // the file of --costs
  schedule::SimulateRequest request;
  std::string recorded_in = {};  // the name of the file whose recording the costs are from
};
// --costs may be a costs file, or a schedule with a recording. Throws UsageError, or Failed after
// printing the errors in the file.
AskedCosts read_costs(const Invocation& invocation, Console& console);
// Without --costs, the costs of a schedule with a recording are those that it recorded, except for
// single times that are given.
void take_recorded_costs(const Invocation& invocation, const Input& input, AskedCosts* asked);
// --memory or --memory-bytes; the latter requires costs with sizes. Throws UsageError.
schedule::MemoryBudget memory_of(const Invocation& invocation, const schedule::Costs& costs);
// Throws UsageError if any of cost_options() was given: "--costs requires X".
void refuse_cost_options(const Invocation& invocation, std::string_view required);

// Simulates an input that is ok and verified: an order with ideal transfers, a program under its
// channel model. Throws Failed after printing the errors if the costs do not fit the schedule, or
// if the schedule exceeds --memory, which with `as_json` is printed as JSON.
Simulation simulate_input(const Input& input, const AskedCosts& asked, Console& console,
                          bool as_json = false);
// The run that an input, which is ok and verified, has recorded; its costs are those recorded, or
// those of --costs.
Simulation recorded_run_of(const Input& input, const AskedCosts& asked, Console& console);
// How to judge the ranks of a measured run against a prediction with these costs.
schedule::Baseline baseline_of(const AskedCosts& asked, const Input& measured);
// Prints the JSON of a schedule that is not simulated, because it is invalid.
void print_invalid_json(const ir::Diagnostics& diagnostics, Console& console);

// Simulates an input that cannot run to its end (input.compiled.blocked) until nothing can run.
// Throws Failed likewise.
schedule::BlockedSimulation simulate_blocked_input(const Input& input, const AskedCosts& asked,
                                                   Console& console);

// Compiles and simulates SOURCE at the level of --level, or else a file at its own level and a name
// at `level_of_name`. Throws FileError, UsageError or Failed.
Simulation simulate_source(const Invocation& invocation, Console& console,
                           std::optional<ir::Level> level_of_name, Input* input);

// Formats of `print` that need a simulation.
std::span<const std::string_view> picture_formats();

// "12.5", "0.3333": a time with up to six significant digits.
std::string number_text(double number);
// "1 activation", "2.5 activations".
std::string activations_text(double number);

// "25.0%"
std::string percent_text(double fraction);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_SIMULATION_H_
