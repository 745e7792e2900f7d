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
#include "pipewright/ir/text/cell_index.h"
#include "pipewright/schedule/lowering/lower.h"

// SOURCE and the options that say what to make of it, for every command that takes a schedule.

namespace pipewright::cli {

// The schedule that a command's SOURCE names, and all that is wrong with it.
struct Input {
  std::optional<ir::Source> source;         // the file; none for a schedule that is made by name
  std::optional<ir::AnySchedule> schedule;  // none if there are errors
  ir::CellIndex cells;                      // of the file; points into `source`
  ir::Diagnostics diagnostics;
};

// SOURCE as an argument; --ranks, --stages, --microbatches; and the lowering policies.
ArgumentSpec source_argument();
std::vector<OptionSpec> shape_options();
std::vector<OptionSpec> lowering_options();

// Reads an argument: a file, which must have the shape that is asked for, or a name, for which a
// schedule of that shape is made. `input` must stay where it is.
void read_input(const Invocation& invocation, Console& console, Input* input, size_t argument = 0);

// The level of a file that was read; `of_name` where a schedule was made by name.
ir::Level own_level(const Input& input, ir::Level of_name);

// Brings the input to the level of --level, by default `level`: lowers an order as the policies
// say. What is lowered already is not lowered again. Does nothing where there are errors.
void lower_input(const Invocation& invocation, ir::Level level,
                 const schedule::PassObserver& observer, Input* input);

// Gives errors that name a rank and a step their place in the file, and sorts them.
void place_diagnostics(Input* input);

// "4 ranks, 8 stages, 1 microbatch".
std::string shape_text(const ir::Schedule& schedule);
// "1 action".
std::string count_text(size_t number, std::string_view one, std::string_view many);

// The file's name, or the schedule's.
std::string input_name(const Input& input);

// What is wrong, for people, to stderr.
void print_diagnostics(const Input& input, Console& console);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_INPUT_H_
