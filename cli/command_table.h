#ifndef PIPEWRIGHT_CLI_COMMAND_TABLE_H_
#define PIPEWRIGHT_CLI_COMMAND_TABLE_H_

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pipewright/cli/console.h"
#include "pipewright/cli/invocation.h"

// The commands of `pipewright`, and the only list of them: parsing, --help, shell completion and
// the man page all read this table.

namespace pipewright::cli {

// The type of the value of an option or an argument.
enum class ValueKind {
  kNone,    // a flag without a value
  kText,    // anything
  kFile,    // a path; shells complete it
  kName,    // a schedule's name; shells complete it
  kSource,  // a schedule's name or a path; shells complete both
  kNumber,  // an integer from 1 to `most`
  kChoice,  // one of `choices`
};

struct ValueSpec {
  ValueKind kind = ValueKind::kNone;
  std::string shown;  // in help: "FILE", "P"
  std::vector<std::string_view> choices;
  int most = std::numeric_limits<int>::max();  // kNumber: the largest value
};

struct OptionSpec {
  std::string_view name;        // "--format"
  std::string_view short_name;  // "-o", or empty
  ValueSpec value;
  std::string_view help;  // one line
  // Whether the values of a repeated option add up, joined by commas. For other options, the last
  // value counts.
  bool accumulates = false;
};

// Options without a short name.
inline OptionSpec flag_option(std::string_view name, std::string_view help) {
  return {name, "", {}, help};
}
inline OptionSpec text_option(std::string_view name, std::string shown, std::string_view help) {
  return {name, "", {ValueKind::kText, std::move(shown), {}}, help};
}
inline OptionSpec number_option(std::string_view name, std::string shown, std::string_view help) {
  return {name, "", {ValueKind::kNumber, std::move(shown), {}}, help};
}
inline OptionSpec file_option(std::string_view name, std::string shown, std::string_view help) {
  return {name, "", {ValueKind::kFile, std::move(shown), {}}, help};
}
inline OptionSpec choice_option(std::string_view name, std::string shown,
                                std::vector<std::string_view> choices, std::string_view help) {
  return {name, "", {ValueKind::kChoice, std::move(shown), std::move(choices)}, help};
}

struct ArgumentSpec {
  ValueSpec value;
  std::string_view help;
  // Only the last argument of a command may be optional or repeat.
  bool optional = false;
  bool repeats = false;  // one or more
};

struct Example {
  std::string_view command;
  std::string_view meaning;
};

struct CommandSpec {
  std::string_view name;
  std::string_view summary;             // one line that starts with a capital letter
  std::string_view description;         // one line per paragraph; help wraps them
  std::vector<ArgumentSpec> arguments;  // in order
  std::vector<OptionSpec> options;
  std::vector<Example> examples;
  // Runs the command and returns its exit code.
  int (*run)(const Invocation&, Console&);
  // Whether the last argument is a program to run. All words after it belong to the program and are
  // appended to the invocation's arguments.
  bool takes_program = false;
};

std::span<const CommandSpec> commands();

// The commands, each in the file of its name. They return an exit code, and throw UsageError,
// FileError or Failed, which run_program catches.
int run_list(const Invocation& invocation, Console& console);
int run_print(const Invocation& invocation, Console& console);
int run_validate(const Invocation& invocation, Console& console);
int run_simulate(const Invocation& invocation, Console& console);
int run_search(const Invocation& invocation, Console& console);
int run_costs(const Invocation& invocation, Console& console);
int run_plan(const Invocation& invocation, Console& console);
int run_diff(const Invocation& invocation, Console& console);
int run_explain(const Invocation& invocation, Console& console);
int run_checkpoint(const Invocation& invocation, Console& console);
int run_launch(const Invocation& invocation, Console& console);
int run_completion(const Invocation& invocation, Console& console);

// Options that every command takes.
std::span<const OptionSpec> common_options();

// 0: done, valid, equal. 1: the schedule is invalid or deadlocks, or the schedules differ. 2: a
// usage error, a file that cannot be read or written, or a bug.
inline constexpr int kExitOk = 0;
inline constexpr int kExitInvalid = 1;
inline constexpr int kExitTrouble = 2;

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_COMMAND_TABLE_H_
