#ifndef PIPEWRIGHT_CLI_PARSE_H_
#define PIPEWRIGHT_CLI_PARSE_H_

#include "pipewright/cli/console.h"

namespace pipewright::cli {

// Runs `pipewright` with the arguments of main() and returns its exit code. Prints errors to stderr
// and throws nothing.
int run_program(int argc, const char* const* argv, Console& console);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_PARSE_H_
