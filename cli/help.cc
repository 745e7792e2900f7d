#include "pipewright/cli/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pipewright::cli {
namespace {

constexpr std::string_view kTagline = "compile, check and show pipeline-parallel schedules";

struct ExitCode {
  int code;
  std::string_view meaning;
};
constexpr ExitCode kExitCodes[] = {
    {kExitOk, "done, valid"},
    {kExitInvalid, "invalid schedule, malformed text included"},
    {kExitTrouble, "trouble: usage, a file that cannot be opened, a bug"},
};

using Rows = std::vector<std::pair<std::string, std::string>>;

// Two columns, the second aligned; below a left side that is too long for that.
std::string columns(const Rows& rows) {
  constexpr size_t kLongest = 40;
  size_t width = 0;
  for (const auto& [left, right] : rows) {
    if (left.size() <= kLongest) width = std::max(width, left.size());
  }
  std::string text;
  for (const auto& [left, right] : rows) {
    text += left.size() <= kLongest ? fmt::format("  {:<{}}  {}\n", left, width, right)
                                    : fmt::format("  {}\n  {:<{}}  {}\n", left, "", width, right);
  }
  return text;
}

std::string option_synopsis(const OptionSpec& option) {
  std::string text = option.short_name.empty() ? "" : std::string(option.short_name) + ", ";
  text += option.name;
  if (option.value.kind == ValueKind::kChoice)
    return text + " " + fmt::format("{}", fmt::join(option.value.choices, "|"));
  if (option.value.kind != ValueKind::kNone) text += fmt::format(" {}", option.value.shown);
  return text;
}

std::string usage(const CommandSpec& command) {
  std::string text = fmt::format("pipewright {}", command.name);
  for (const ArgumentSpec& argument : command.arguments) {
    if (argument.value.kind == ValueKind::kChoice) {
      text += fmt::format(" {}", fmt::join(argument.value.choices, "|"));
    } else {
      text += fmt::format(" {}", argument.value.shown);
    }
  }
  if (!command.options.empty()) text += " [OPTIONS]";
  return text;
}

Rows option_rows(std::span<const OptionSpec> options) {
  Rows rows;
  for (const OptionSpec& option : options) rows.emplace_back(option_synopsis(option), option.help);
  return rows;
}

Rows example_rows(const CommandSpec& command) {
  Rows rows;
  for (const Example& example : command.examples)
    rows.emplace_back(example.command, example.meaning);
  return rows;
}

// A text for man(7): backslashes and leading dots are its own.
std::string roff(std::string_view text) {
  std::string escaped;
  bool line_start = true;
  for (const char letter : text) {
    if (line_start && (letter == '.' || letter == '\'')) escaped += "\\&";
    if (letter == '-') escaped += '\\';
    escaped += letter == '\\' ? "\\e" : std::string(1, letter);
    line_start = letter == '\n';
  }
  return escaped;
}

std::string man_options(std::span<const OptionSpec> options) {
  std::string text;
  for (const OptionSpec& option : options)
    text += fmt::format(".TP\n.B {}\n{}\n", roff(option_synopsis(option)), roff(option.help));
  return text;
}

}  // namespace

std::string program_help() {
  Rows rows;
  for (const CommandSpec& command : commands()) rows.emplace_back(command.name, command.summary);
  std::string text =
      fmt::format("pipewright {}: {}\n\nusage: pipewright COMMAND [ARGUMENTS]\n\ncommands\n{}",
                  kVersion, kTagline, columns(rows));
  text += "\nexamples\n";
  text += columns({{"pipewright print schedules/1f1b.plan", "a ready schedule as a table"},
                   {"pipewright validate plan.csv", "all that is wrong with it, with places"},
                   {"pipewright explain PW006", "more about an error"}});
  text +=
      "\n`pipewright COMMAND --help` tells more about a command, `pipewright --version` the "
      "version.\n";
  return text;
}

std::string command_help(const CommandSpec& command) {
  std::string text =
      fmt::format("{}: {}\n\nusage: {}\n\nexamples\n{}\n{}\n", command.name, command.summary,
                  usage(command), columns(example_rows(command)), command.description);
  Rows arguments;
  for (const ArgumentSpec& argument : command.arguments)
    arguments.emplace_back(argument.value.shown, argument.help);
  if (!arguments.empty()) text += "\narguments\n" + columns(arguments);
  Rows options = option_rows(command.options);
  for (const auto& row : option_rows(common_options())) options.push_back(row);
  return text + "\noptions\n" + columns(options);
}

std::string man_page() {
  std::string text =
      fmt::format(".TH PIPEWRIGHT 1 \"\" \"pipewright {}\" \"User Commands\"\n", kVersion);
  text += fmt::format(
      ".SH NAME\npipewright \\- {}\n.SH SYNOPSIS\n.B pipewright\nCOMMAND [ARGUMENTS]\n.SH "
      "COMMANDS\n",
      roff(kTagline));
  for (const CommandSpec& command : commands()) {
    text += fmt::format(".SS {}\n{}\n.PP\n{}\n", roff(usage(command)), roff(command.summary) + ".",
                        roff(command.description));
    for (const ArgumentSpec& argument : command.arguments) {
      text += fmt::format(".TP\n.I {}\n{}\n", roff(argument.value.shown), roff(argument.help));
    }
    text += man_options(command.options);
  }
  text += ".SH OPTIONS\nEvery command takes these:\n" + man_options(common_options());
  text += ".TP\n.B \\-\\-version\nshow the version; for pipewright itself\n.SH EXIT STATUS\n";
  for (const ExitCode& row : kExitCodes)
    text += fmt::format(".TP\n.B {}\n{}\n", row.code, roff(row.meaning));
  text +=
      ".SH ENVIRONMENT\n.TP\n.B NO_COLOR\nwhere set and not empty, no colours unless \\-\\-color "
      "always\n.SH EXAMPLES\n";
  for (const CommandSpec& command : commands()) {
    for (const Example& example : command.examples) {
      text += fmt::format(".TP\n.B {}\n{}\n", roff(example.command), roff(example.meaning));
    }
  }
  return text;
}

}  // namespace pipewright::cli
