#ifndef PIPEWRIGHT_CLI_INPUT_H_
#define PIPEWRIGHT_CLI_INPUT_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/console.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/lowering.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/problem/costs.h"

// SOURCE and its options, for all commands that take a schedule.

namespace pipewright::cli {

// The SOURCE argument; --ranks, --stages, --microbatches and the options of single schedules; one
// option per lowering policy.
ArgumentSpec source_argument();
std::vector<OptionSpec> shape_options();
std::vector<OptionSpec> lowering_options();

// The policies that are given. Throws UsageError.
ir::Lowering policies_of(const Invocation& invocation);

// Whom --memory concerns: only schedules that plan for it, so that it is an error for others, or
// the command too.
enum class MemoryOption { kOfSchedule, kOfCommand };

// A SOURCE that has been read: a schedule's name, whose shape is known, or a file. It may have
// errors, which are not printed yet: see source.ok().
struct Input {
  std::string name;                        // of the schedule or the file
  std::shared_ptr<const ir::Source> file;  // null if SOURCE is a schedule's name
  schedule::ReadSource source;

  // Whether it is the name of a schedule that plans with costs, so that every command that
  // generates it takes the cost options.
  bool plans_with_costs() const;
};

// Reads the SOURCE that a word refers to. A schedule's name is never a file; a note says so if a
// file has that name. Throws FileError or UsageError.
Input read_input(const Invocation& invocation, const std::string& word, Console& console,
                 MemoryOption memory = MemoryOption::kOfSchedule);

// Ends the command if the input could not be read: prints its diagnostics and throws Failed.
void require_ok(const Input& input, Console& console);

// The value of --replicas, 1 or 2; 0 if it is not given. Throws UsageError.
int replicas_of(const Invocation& invocation);

// A number above 0, the value of an option. Throws UsageError.
double positive_number(const std::string& option, std::string_view text);
// The same for --memory and --memory-bytes: one number, or one per rank, separated by commas.
schedule::PerRank memory_numbers(const std::string& option, std::string_view text);

// Prints diagnostics to stderr as text. `file` is the file that their places refer to, or null.
void print_diagnostics(const ir::Diagnostics& diagnostics, const ir::Source* file,
                       const std::string& name, Console& console);

// kExitInvalid for errors in a schedule; kExitTrouble if the request is wrong (an unknown name, an
// unsupported shape, an option that does not apply).
int exit_code_of(const ir::Diagnostics& diagnostics);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_INPUT_H_
