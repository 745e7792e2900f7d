#ifndef PIPEWRIGHT_CLI_COMMANDS_H_
#define PIPEWRIGHT_CLI_COMMANDS_H_

#include "pipewright/cli/console.h"
#include "pipewright/cli/invocation.h"

// The commands; cli/command_table.cc describes how they are called. Each returns its exit code and
// throws UsageError, FileError or Failed, which run_program catches.

namespace pipewright::cli {

int run_list(const Invocation& invocation, Console& console);
int run_print(const Invocation& invocation, Console& console);
int run_validate(const Invocation& invocation, Console& console);
int run_simulate(const Invocation& invocation, Console& console);
int run_search(const Invocation& invocation, Console& console);
int run_diff(const Invocation& invocation, Console& console);
int run_explain(const Invocation& invocation, Console& console);
int run_checkpoint(const Invocation& invocation, Console& console);
int run_launch(const Invocation& invocation, Console& console);
int run_completion(const Invocation& invocation, Console& console);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_COMMANDS_H_
