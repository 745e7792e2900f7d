#ifndef PIPEWRIGHT_CLI_HELP_H_
#define PIPEWRIGHT_CLI_HELP_H_

#include <string>

#include "pipewright/cli/command_table.h"

// --help and the man page, from the command table.

namespace pipewright::cli {

std::string program_help();
std::string command_help(const CommandSpec& command);

// pipewright(1), in man(7).
std::string man_page();

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_HELP_H_
