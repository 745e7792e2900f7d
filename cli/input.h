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
#include "pipewright/schedule/compile.h"

// SOURCE and its options, for every command that takes a schedule: from the words of the command
// line to schedule::compile, and its diagnostics to stderr.

namespace pipewright::cli {

// SOURCE as an argument; --ranks, --stages, --microbatches and the like; the lowering policies.
ArgumentSpec source_argument();
std::vector<OptionSpec> shape_options();
std::vector<OptionSpec> lowering_options();

// A schedule that is named, or a file; and what became of it.
struct Input {
  std::optional<ir::Source> file;  // none for a schedule that is named
  std::string name;                // the file's, or the schedule's
  schedule::CompileResult compiled = {};

  // Only where compiled.ok().
  const ir::AnySchedule& any() const { return *compiled.schedule; }
  const ir::Schedule& schedule() const { return ir::schedule_of(any()); }
};

// Takes the name, or reads the file, that an argument is; nothing is compiled yet.
Input read_input(const Invocation& invocation, Console& console, size_t argument = 0);

// The level to compile to where --level does not say it.
struct DefaultLevels {
  std::optional<ir::Level> of_name = ir::Level::kComputeComms;
  std::optional<ir::Level> of_file = {};  // none for the source's own level
};

// Compiles an input as the options say. What is wrong is in the result, and not printed.
void compile_input(const Invocation& invocation, const DefaultLevels& levels, schedule::Depth depth,
                   Input* input, const schedule::PassObserver& observer = nullptr);
// The same without policies and --level: reads or generates the schedule at its own level.
void parse_input(const Invocation& invocation, Input* input);

// Ends the command if the input is not ok: prints its diagnostics and throws Failed.
void require_ok(const Input& input, Console& console);

// What is wrong, for people, to stderr. `file` is where the places are, or null.
void print_diagnostics(const ir::Diagnostics& diagnostics, const ir::Source* file,
                       const std::string& name, Console& console);
void print_diagnostics(const Input& input, Console& console);

// kExitInvalid, or kExitTrouble where the request is wrong and not the schedule.
int exit_code_of(const ir::Diagnostics& diagnostics);

// "4 ranks, 8 stages, 1 microbatch".
std::string shape_text(const ir::Schedule& schedule);
// "1 action".
std::string count_text(size_t number, std::string_view one, std::string_view many);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_INPUT_H_
