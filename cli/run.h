#ifndef PIPEWRIGHT_CLI_RUN_H_
#define PIPEWRIGHT_CLI_RUN_H_

#include <optional>
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

// The cost options, and a SOURCE that is compiled and simulated with them: turns command-line words
// into calls of schedule::compile and schedule::simulate.

namespace pipewright::cli {

using schedule::Simulation;

// --costs, --forward, ..., --comm, --scale, --slow.
std::vector<OptionSpec> cost_options();

// The whole numbers from 0 of an option such as --cut 5,4,4,3. Throws UsageError, which says what
// is expected.
std::vector<int> counts(const std::string& option, std::string_view text,
                        std::string_view expected = "whole numbers from 0, with commas between");

// The first of them that was given; nullopt if none was.
std::optional<std::string> given_cost_option(const Invocation& invocation);

// The costs that the options ask for. A command that shows the lower bound sets with_bound.
struct AskedCosts {
  std::optional<ir::Source> file = {};  // of --costs
  schedule::SimulateRequest request = {.with_bound = false};
  std::string recorded_in = {};  // the name of the file whose recording the costs are from
};
// --costs may be a costs file, or a schedule with a recording. Throws UsageError, FileError, or
// Failed after printing the errors in the file.
AskedCosts read_costs(const Invocation& invocation, Console& console);
// Without --costs, the costs of a file with a recording are those that it recorded, except for
// single times that are given. Changes nothing for other inputs.
void take_recorded_costs(const Invocation& invocation, const Input& input, AskedCosts* asked);
// --memory or --memory-bytes; the latter requires costs with sizes. Throws UsageError.
schedule::MemoryBudget memory_of(const Invocation& invocation, const schedule::Costs& costs);

// How to compile an input.
struct RunOptions {
  // The levels to compile to without --level; nullopt: the level of the source.
  std::optional<ir::Level> level_of_name = ir::Level::kComputeComms;
  std::optional<ir::Level> level_of_file = {};
  schedule::Depth depth = schedule::Depth::kVerify;
  schedule::PassObserver observer = {};
};

// An input, compiled with the options of the command:
//
//   const Run run(invocation, console, read_input(invocation, "ZBV", console),
//                 read_costs(invocation, console), {});
//   run.require_ok();
//   console.out << run.predicted().report.makespan;
//
// The invocation and the console must outlive it.
class Run {
 public:
  // Errors are stored, not printed; notes on stderr say which options override a policy of the
  // file, and whether its recording is lost. Throws UsageError. The costs of a schedule with a
  // recording are those that it recorded, unless `costs` are from another file.
  Run(const Invocation& invocation, Console& console, Input input, AskedCosts costs,
      const RunOptions& options);

  const std::string& name() const { return input_.name; }
  const schedule::CompileResult& compiled() const { return compiled_; }
  const AskedCosts& costs() const { return costs_; }
  bool ok() const { return compiled_.ok(); }
  int exit_code() const;
  void print_diagnostics() const { print_diagnostics(compiled_.diagnostics); }
  // Ends the command if it is not ok: prints its diagnostics and throws Failed.
  void require_ok() const;

  // All that follows requires ok(), but for blocked().
  const ir::AnySchedule& any() const { return *compiled_.schedule; }
  const ir::Schedule& schedule() const { return ir::schedule_of(any()); }
  const ir::Program* program() const { return std::get_if<ir::Program>(&any()); }
  bool is_recorded() const { return compiled_.recording.has_value(); }

  // These throw Failed after printing errors if the costs do not fit the schedule, or if it exceeds
  // their memory, which is a result and printed as JSON with --json. They need Depth::kVerify.
  // An order has ideal transfers, a program those of its channel model.
  Simulation predicted() const;
  // The run that was recorded. Its costs are those recorded, or those of --costs.
  Simulation recorded() const;
  // How far a schedule gets that cannot run to its end: compiled().blocked.
  schedule::BlockedSimulation blocked() const;
  // How to judge the ranks of the recorded run against a prediction with these costs.
  schedule::Baseline baseline() const;

 private:
  void print_diagnostics(const ir::Diagnostics& diagnostics) const;
  Simulation take(schedule::SimulateResult result) const;
  [[noreturn]] void fail_for_costs(const ir::Diagnostics& diagnostics) const;

  const Invocation& invocation_;
  Console& console_;
  Input input_;
  AskedCosts costs_;
  schedule::CompileResult compiled_;
};

// Prints the JSON of a schedule that is not simulated, because it is invalid.
void print_invalid_json(const ir::Diagnostics& diagnostics, Console& console);

// The size of a stage of the second of two schedules of one model, cut into different numbers of
// stages: `before` / `after` of a stage of the first.
struct StageRatio {
  int before = 1, after = 1;  // numbers of stages

  bool is_one() const { return before == after; }
  double value() const { return static_cast<double>(before) / after; }
  // "compared as one model: a stage of the second is 4/8 of a stage of the first, in time and in
  // activations"
  std::string text() const;
};
// 1 unless all costs are the default ones, which are per stage and say nothing about the model.
// Otherwise scales the costs of the second schedule by it.
StageRatio scale_stages(const Invocation& invocation, int before, int after, AskedCosts* costs);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_RUN_H_
