#ifndef PIPEWRIGHT_CLI_INPUT_H_
#define PIPEWRIGHT_CLI_INPUT_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/console.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/problem/costs.h"

// Two schedules of one model, cut into different numbers of stages, for commands that compare.

namespace pipewright::cli {

// The size of a stage of the second schedule: `before` / `after` of a stage of the first.
struct StageRatio {
  int before = 1, after = 1;  // numbers of stages

  bool is_one() const { return before == after; }
  double value() const { return static_cast<double>(before) / after; }
};

// 1 unless all costs are the default ones, which are per stage and say nothing about the model.
StageRatio ratio_of(const Invocation& invocation, const ir::Schedule& before,
                    const ir::Schedule& after);

// Scales the times of the second schedule.
void scale_stages(const StageRatio& ratio, schedule::Costs* costs);

// "compared as one model: a stage of the second is 4/8 of a stage of the first, in time and in
// activations"
std::string describe(const StageRatio& ratio);

// SOURCE and its options, for all commands that take a schedule: turns command-line words into a
// call of schedule::compile and prints its diagnostics to stderr.

// The SOURCE argument; --ranks, --stages, --microbatches and the options of single schedules; one
// option per lowering policy.
ArgumentSpec source_argument();
std::vector<OptionSpec> shape_options();
std::vector<OptionSpec> lowering_options();

// A SOURCE, which is a schedule's name or a file, and the result of compiling it.
struct Input {
  std::optional<ir::Source> file;  // nullopt if SOURCE is a schedule's name
  std::string name;                // the name of the file or of the schedule
  schedule::Costs costs = {};      // for a schedule that plans with costs; set before compiling
  schedule::CompileResult compiled = {};
  bool may_ignore_memory = false;  // --memory concerns more than schedules that plan with it

  // Both require compiled.ok().
  const ir::AnySchedule& any() const { return *compiled.schedule; }
  const ir::Schedule& schedule() const { return ir::schedule_of(any()); }
};

// Reads the file that a word refers to, or stores the schedule's name. A schedule's name is never a
// file; a note says so if a file has that name. Compiles nothing.
Input read_input(const std::string& word, Console& console);
// The same for an argument.
Input read_input(const Invocation& invocation, Console& console, size_t argument = 0);

// A number above 0, the value of an option. Throws UsageError.
double positive_number(const std::string& option, std::string_view text);
// The same for --memory and --memory-bytes, which hold for all ranks alike.
double memory_number(const std::string& option, std::string_view text);

// Whether the input is the name of a schedule that plans with costs, so that every command that
// generates it takes the cost options.
bool plans_with_costs(const Input& input);

// The level to compile to without --level.
struct DefaultLevels {
  std::optional<ir::Level> of_name = ir::Level::kComputeComms;
  std::optional<ir::Level> of_file = {};  // nullopt: the level of the source
};

// Compiles an input with the given options. Errors are stored in input->compiled, not printed; a
// note on stderr says which options override a policy of the file.
void compile_input(const Invocation& invocation, const DefaultLevels& levels, schedule::Depth depth,
                   Input* input, Console& console,
                   const schedule::PassObserver& observer = nullptr);
// The same without policies and --level: reads or generates the schedule at the level of the
// source.
void parse_input(const Invocation& invocation, Input* input);

// Ends the command if the input is not ok: prints its diagnostics and throws Failed.
void require_ok(const Input& input, Console& console);

// Prints diagnostics to stderr as text. `file` is the file that their places refer to, or null.
void print_diagnostics(const ir::Diagnostics& diagnostics, const ir::Source* file,
                       const std::string& name, Console& console);
void print_diagnostics(const Input& input, Console& console);

// kExitInvalid for errors in a schedule; kExitTrouble if the request is wrong (an unknown name, an
// unsupported shape, an option that does not apply).
int exit_code_of(const ir::Diagnostics& diagnostics);

// "4 ranks, 8 stages, 1 microbatch".
std::string shape_text(const ir::Schedule& schedule);

// The stages that recompute: "no stage", "stages 0, 2" or "all stages".
std::string recompute_text(const ir::Schedule& schedule);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_INPUT_H_
