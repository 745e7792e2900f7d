#include "cli/command_table.h"

#include "cli/commands.h"
#include "ir/read.h"

namespace pipewright::cli {
namespace {

const ArgumentSpec kSource = {{ValueKind::kFile, "SOURCE", {}},
                              "a schedule file (.csv, .plan, .json), or - for stdin"};

// What the shape of a schedule should be.
std::vector<OptionSpec> with_shape(std::vector<OptionSpec> options) {
  const OptionSpec shape[] = {
      {"--ranks", "", {ValueKind::kNumber, "P", {}}, "ranks that the schedule should have"},
      {"--stages", "", {ValueKind::kNumber, "S", {}}, "stages that it should have"},
      {"--microbatches", "", {ValueKind::kNumber, "M", {}}, "microbatches that it should have"},
  };
  options.insert(options.end(), std::begin(shape), std::end(shape));
  return options;
}

std::vector<std::string_view> print_formats() {
  std::vector<std::string_view> names = {"table"};
  for (const ir::FormatInfo& format : ir::formats()) names.push_back(format.name);
  return names;
}

const std::vector<CommandSpec>& table() {
  static const std::vector<CommandSpec> kCommands = {
      {"list",
       "list the ready schedule files",
       "Lists the files under schedules/ with their level, shape and placement.",
       {},
       {},
       {{"pipewright list", "what there is"}},
       run_list},
      {"print",
       "print a schedule in any format",
       "Reads a schedule and prints it as a table, with a line a step and a column a rank, or in "
       "one of the file\n"
       "formats. The format of the file is told from its extension, else from its first bytes. A "
       "file that cannot be\n"
       "read gives errors on stderr, exit code 1, and nothing else.",
       {kSource},
       with_shape({
           {"--format",
            "",
            {ValueKind::kChoice, "FORMAT", print_formats()},
            "table (the default), or a file format"},
           {"--output",
            "-o",
            {ValueKind::kFile, "FILE", {}},
            "write to FILE, whole or not at all; - is stdout"},
       }),
       {{"pipewright print schedules/1f1b.plan", "as a table"},
        {"pipewright print plan.csv --format plan -o plan.plan", "from PyTorch's CSV to a .plan"},
        {"pipewright print - --format json <plan.csv", "from stdin"}},
       run_print},
      {"validate",
       "check a schedule",
       "Reads a schedule and reports all that is wrong with its text and its shape. What is "
       "checked is said in the\n"
       "result. Exit code 0: valid. 1: invalid. 2: the file cannot be opened.",
       {kSource},
       with_shape({
           {"--json", "", {ValueKind::kNone, "", {}}, "the result as JSON on stdout"},
       }),
       {{"pipewright validate plan.csv", "all errors at once, each with its place"},
        {"pipewright validate plan.csv --ranks 4 --microbatches 8", "and the shape is that"},
        {"pipewright validate plan.csv --json", "for a program"}},
       run_validate},
      {"explain",
       "explain a rule",
       "Prints what the rule of an error's code asks for, why, and a wrong and a right example.",
       {{{ValueKind::kText, "CODE", {}}, "the code of a rule, as in error[PW006]"}},
       {},
       {{"pipewright explain PW006", "what is behind error[PW006]"}},
       run_explain},
      {"completion",
       "print a completion script for a shell",
       "Prints a script that completes commands, options and their values.",
       {{{ValueKind::kChoice, "SHELL", {"bash", "zsh", "fish"}}, "bash, zsh or fish"}},
       {},
       {{"source <(pipewright completion bash)", "for this bash"},
        {"source <(pipewright completion zsh)", "for this zsh"},
        {"pipewright completion fish | source", "for this fish"}},
       run_completion},
  };
  return kCommands;
}

}  // namespace

std::span<const CommandSpec> commands() { return table(); }

std::span<const OptionSpec> common_options() {
  static const OptionSpec kCommon[] = {
      {"--color",
       "",
       {ValueKind::kChoice, "WHEN", {"auto", "always", "never"}},
       "colours; auto heeds NO_COLOR and the terminal"},
      {"--width",
       "",
       {ValueKind::kNumber, "N", {}},
       "columns to use; by default those of the terminal"},
      {"--help", "-h", {}, "show this help"},
  };
  return kCommon;
}

}  // namespace pipewright::cli
