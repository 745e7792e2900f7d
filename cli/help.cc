#include "pipewright/cli/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace pipewright::cli {
namespace {

constexpr std::string_view kTagline =
    "Compile, verify, simulate and print pipeline-parallel schedules";

struct ExitCode {
  int code;
  std::string_view meaning;
};
constexpr ExitCode kExitCodes[] = {
    {kExitOk, "success: done, valid, equal"},
    {kExitInvalid, "the schedule is invalid or deadlocks, or the schedules differ"},
    {kExitTrouble, "usage error, a file that cannot be read or written, or a bug"},
};

using Rows = std::vector<std::pair<std::string, std::string>>;

constexpr size_t kWidth = 80;

// Wraps text into lines of up to kWidth columns and indents all but the first, which is already at
// column `indent`.
std::string wrapped(std::string_view text, size_t indent) {
  std::string out;
  size_t column = indent;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(" \n"), text.size());
    const std::string_view word = text.substr(0, end);
    const bool paragraph = end < text.size() && text[end] == '\n';
    if (column > indent && column + 1 + word.size() > kWidth) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
    }
    if (column > indent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    text.remove_prefix(std::min(end + 1, text.size()));
    if (paragraph) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
    }
  }
  return out + '\n';
}

// Puts a blank line between paragraphs.
std::string paragraphs(std::string_view lines) {
  std::string text;
  for (const char letter : lines)
    text += letter == '\n' ? std::string(2, letter) : std::string(1, letter);
  return text;
}

// Formats two columns. The right one is aligned and wrapped, and starts on the next line if the
// left one is long.
std::string columns(const Rows& rows) {
  constexpr size_t kLongest = 24;
  size_t width = 0;
  for (const auto& [left, right] : rows) {
    if (left.size() <= kLongest) width = std::max(width, left.size());
  }
  const size_t indent = 2 + width + 2;
  std::string text;
  for (const auto& [left, right] : rows) {
    text += "  " + left;
    text += left.size() <= width ? std::string(indent - 2 - left.size(), ' ')
                                 : '\n' + std::string(indent, ' ');
    text += wrapped(right, indent);
  }
  return text;
}

// "-o, --output FILE", or "--output FILE" without a short name.
std::string option_synopsis(const OptionSpec& option) {
  std::string text = option.short_name.empty() ? "" : std::string(option.short_name) + ", ";
  text += option.name;
  if (option.value.kind != ValueKind::kNone) text += fmt::format(" {}", option.value.shown);
  return text;
}

std::string option_help(const OptionSpec& option) {
  if (option.value.kind != ValueKind::kChoice) return std::string(option.help);
  return fmt::format("{} [{}]", option.help, fmt::join(option.value.choices, ", "));
}

std::string usage(const CommandSpec& command) {
  std::string text = fmt::format("pipewright {}", command.name);
  if (!command.options.empty()) text += " [OPTIONS]";
  for (const ArgumentSpec& argument : command.arguments) {
    const std::string_view shown = argument.value.shown;
    text += argument.optional ? fmt::format(" [{}]", shown) : fmt::format(" {}", shown);
    if (argument.repeats) text += "...";
  }
  if (command.takes_program) text += " [ARGS]...";
  return text;
}

std::string option_rows(std::span<const OptionSpec> options) {
  bool any_short = false;
  for (const OptionSpec& option : options) any_short = any_short || !option.short_name.empty();
  Rows rows;
  for (const OptionSpec& option : options) {
    const bool align = any_short && option.short_name.empty();
    rows.emplace_back((align ? "    " : "") + option_synopsis(option), option_help(option));
  }
  return columns(rows);
}

// Separates paragraphs by man(7)'s .PP.
std::string man_paragraphs(std::string text) {
  for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 5))
    text.replace(at, 1, "\n.PP\n");
  return text;
}

// Escapes text for man(7): hyphens, backslashes, and dots and quotes at the start of a line.
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
    text +=
        fmt::format(".TP\n.B {}\n{}\n", roff(option_synopsis(option)), roff(option_help(option)));
  return text;
}

}  // namespace

std::string program_help() {
  Rows rows;
  for (const CommandSpec& command : commands()) rows.emplace_back(command.name, command.summary);
  return fmt::format("{}\n\nUsage: pipewright COMMAND [OPTIONS] [ARGS]...\n\nCommands:\n{}",
                     kTagline, columns(rows)) +
         "\nOptions:\n  -h, --help     show this help\n      --version  show the version\n"
         "\nExamples:\n"
         "  pipewright print 1F1B --ranks 4 --microbatches 8\n"
         "  pipewright validate plan.csv\n"
         "  pipewright explain PW006\n"
         "\nFor more about a command, run `pipewright COMMAND --help`.\n";
}

std::string command_help(const CommandSpec& command) {
  std::string text = fmt::format("{}\n\nUsage: {}\n\n{}", command.summary, usage(command),
                                 wrapped(paragraphs(command.description), 0));
  Rows arguments;
  for (const ArgumentSpec& argument : command.arguments)
    arguments.emplace_back(argument.value.shown, argument.help);
  if (!arguments.empty()) text += "\nArguments:\n" + columns(arguments);
  std::vector<OptionSpec> options = command.options;
  options.insert(options.end(), common_options().begin(), common_options().end());
  text += "\nOptions:\n" + option_rows(options) + "\nExamples:\n";
  for (const Example& example : command.examples)
    text += fmt::format("  # {}\n  {}\n", example.meaning, example.command);
  return text;
}

std::string man_page() {
  std::string text =
      fmt::format(".TH PIPEWRIGHT 1 \"\" \"pipewright {}\" \"User Commands\"\n", kVersion);
  text += fmt::format(
      ".SH NAME\npipewright \\- {}\n.SH SYNOPSIS\n.B pipewright\nCOMMAND [ARGUMENTS]\n.SH "
      "COMMANDS\n",
      roff(kTagline));
  for (const CommandSpec& command : commands()) {
    text += fmt::format(".SS {}\n{}.\n.PP\n{}\n", roff(usage(command)), roff(command.summary),
                        man_paragraphs(roff(command.description)));
    for (const ArgumentSpec& argument : command.arguments) {
      text += fmt::format(".TP\n.I {}\n{}\n", roff(argument.value.shown), roff(argument.help));
    }
    text += man_options(command.options);
  }
  text += ".SH OPTIONS\nEvery command takes these:\n" + man_options(common_options());
  text +=
      ".TP\n.B \\-\\-version\nshow the version; an option of pipewright itself\n.SH EXIT STATUS\n";
  for (const ExitCode& row : kExitCodes)
    text += fmt::format(".TP\n.B {}\n{}\n", row.code, roff(row.meaning));
  text +=
      ".SH ENVIRONMENT\n.TP\n.B NO_COLOR\nif set and not empty, turns colours off unless "
      "\\-\\-color always is given\n.SH EXAMPLES\n";
  for (const CommandSpec& command : commands()) {
    for (const Example& example : command.examples) {
      text += fmt::format(".TP\n.B {}\n{}\n", roff(example.command), roff(example.meaning));
    }
  }
  return text;
}

}  // namespace pipewright::cli
