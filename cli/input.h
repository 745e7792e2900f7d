#ifndef PIPEWRIGHT_CLI_INPUT_H_
#define PIPEWRIGHT_CLI_INPUT_H_

#include <optional>

#include "cli/console.h"
#include "cli/invocation.h"
#include "ir/parsed_schedule.h"
#include "ir/read.h"

namespace pipewright::cli {

// The schedule that a command's SOURCE names, with its text and all that is wrong with it.
struct Input {
  ir::Source source;
  ir::Diagnostics diagnostics;
  std::optional<ir::ParsedSchedule> parsed;  // none if there are errors; points into `source`
};

// Reads argument 0 and checks it against --ranks, --stages and --microbatches. `input` must stay
// where it is.
void read_input(const Invocation& invocation, Console& console, Input* input);

// What is wrong, for people, to stderr.
void print_diagnostics(const Input& input, Console& console);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_INPUT_H_
