#include <fmt/format.h>

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::cli {
namespace {

std::vector<OptionSpec> options_of(const CommandSpec& command) {
  std::vector<OptionSpec> options = command.options;
  options.insert(options.end(), common_options().begin(), common_options().end());
  return options;
}

std::string command_names() {
  std::string names;
  for (const CommandSpec& command : commands())
    names += (names.empty() ? "" : " ") + std::string(command.name);
  return names;
}

std::string schedule_words() {
  std::string words;
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules())
    words += (words.empty() ? "" : " ") + std::string(spec->name);
  return words;
}

// What completes a value, for COMPREPLY=(...); empty if nothing does.
std::string bash_words(const ValueSpec& value) {
  const auto words = [](const std::string& list) {
    return fmt::format("$(compgen -W '{}' -- \"$word\")", list);
  };
  const std::string files = "$(compgen -f -- \"$word\")";
  switch (value.kind) {
    case ValueKind::kNone:
    case ValueKind::kText:
    case ValueKind::kNumber:
      return "";
    case ValueKind::kFile:
      return files;
    case ValueKind::kName:
      return words(schedule_words());
    case ValueKind::kSource:
      return words(schedule_words()) + " " + files;
    case ValueKind::kChoice:
      return words(fmt::format("{}", fmt::join(value.choices, " ")));
  }
  return "";
}

// Completes the word at the cursor: as an option's value if the previous word is that option, as an
// option if it starts with a dash, otherwise as an argument.
std::string bash_completion() {
  std::string text =
      "# bash completion for pipewright: source <(pipewright completion bash)\n"
      "_pipewright() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} "
      "command=${COMP_WORDS[1]}\n"
      "  COMPREPLY=()\n"
      "  if ((COMP_CWORD == 1)); then\n";
  text += fmt::format(
      "    COMPREPLY=($(compgen -W '{} --help --version' -- \"$word\"))\n    return\n  fi\n",
      command_names());
  text += "  case $command in\n";
  for (const CommandSpec& command : commands()) {
    text += fmt::format("    {})\n      case $before in\n", command.name);
    std::string flags;
    for (const OptionSpec& option : options_of(command)) {
      flags += (flags.empty() ? "" : " ") + std::string(option.name);
      if (!option.short_name.empty()) flags += " " + std::string(option.short_name);
      if (option.value.kind == ValueKind::kNone) continue;
      const std::string pattern = option.short_name.empty()
                                      ? std::string(option.name)
                                      : fmt::format("{}|{}", option.short_name, option.name);
      const bool is_source = option.value.kind == ValueKind::kSource;  // completed as a file
      const std::string words =
          bash_words(is_source ? ValueSpec{ValueKind::kFile, "", {}} : option.value);
      text += words.empty()
                  ? fmt::format("        {}) return ;;\n", pattern)
                  : fmt::format("        {}) COMPREPLY=({}); return ;;\n", pattern, words);
    }
    text += "      esac\n";
    text += fmt::format(
        "      if [[ $word == -* ]]; then COMPREPLY=($(compgen -W '{}' -- \"$word\")); return; "
        "fi\n",
        flags);
    for (const ArgumentSpec& argument : command.arguments) {
      const std::string words = bash_words(argument.value);
      if (!words.empty()) text += fmt::format("      COMPREPLY=({})\n", words);
    }
    text += "      ;;\n";
  }
  return text + "  esac\n}\ncomplete -o filenames -F _pipewright pipewright\n";
}

// Escapes text for the single quotes and brackets of zsh's _arguments.
std::string zsh_text(std::string_view text) {
  std::string escaped;
  for (const char letter : text) {
    if (letter == '[' || letter == ']' || letter == ':' || letter == '\\') escaped += '\\';
    escaped += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  }
  return escaped;
}

std::string zsh_action(const ValueSpec& value) {
  switch (value.kind) {
    case ValueKind::kNone:
      return "";
    case ValueKind::kText:
    case ValueKind::kNumber:
      return fmt::format(":{}: ", zsh_text(value.shown));
    case ValueKind::kFile:
      return fmt::format(":{}:_files", value.shown);
    case ValueKind::kName:
      return fmt::format(":{}:({})", value.shown, schedule_words());
    case ValueKind::kSource:
      return fmt::format(":{}: _pipewright_source", value.shown);
    case ValueKind::kChoice:
      return fmt::format(":{}:({})", value.shown, fmt::join(value.choices, " "));
  }
  return "";
}

std::string zsh_completion() {
  std::string text =
      "#compdef pipewright\n"
      "# zsh completion for pipewright: source <(pipewright completion zsh)\n"
      "_pipewright_source() {\n  _alternative 'names:schedule:(" +
      schedule_words() +
      ")' 'files:file:_files'\n}\n"
      "_pipewright() {\n"
      "  local -a commands=(\n";
  for (const CommandSpec& command : commands())
    text += fmt::format("    '{}:{}'\n", command.name, zsh_text(command.summary));
  text +=
      "  )\n"
      "  if ((CURRENT == 2)); then\n"
      "    _describe command commands\n"
      "    _arguments '--help[show this help]' '--version[show the version]'\n"
      "    return\n"
      "  fi\n"
      "  local command=${words[2]}\n"
      "  shift words\n"
      "  ((CURRENT--))\n"
      "  case $command in\n";
  for (const CommandSpec& command : commands()) {
    text += fmt::format("    {})\n      _arguments", command.name);
    for (const OptionSpec& option : options_of(command)) {
      const std::string rest =
          fmt::format("[{}]{}", zsh_text(option.help), zsh_action(option.value));
      text += fmt::format(" \\\n        '{}{}'", option.name, rest);
      if (!option.short_name.empty())
        text += fmt::format(" \\\n        '{}{}'", option.short_name, rest);
    }
    for (const ArgumentSpec& argument : command.arguments)
      text += fmt::format(" \\\n        '{}{}'",
                          argument.repeats    ? "*"
                          : argument.optional ? ":"
                                              : "",
                          zsh_action(argument.value));
    text += "\n      ;;\n";
  }
  // Loaded by compinit, the script is the function's first call; otherwise it is sourced.
  return text +
         "  esac\n}\n"
         "if [[ $funcstack[1] == _pipewright ]]; then\n"
         "  _pipewright \"$@\"\n"
         "else\n"
         "  compdef _pipewright pipewright\n"
         "fi\n";
}

std::string fish_quote(std::string_view text) {
  std::string escaped = "'";
  for (const char letter : text) {
    if (letter == '\'' || letter == '\\') escaped += '\\';
    escaped += letter;
  }
  return escaped + "'";
}

std::string fish_completion() {
  std::string text =
      "# fish completion for pipewright: pipewright completion fish | source\ncomplete -c "
      "pipewright -f\n";
  text += "complete -c pipewright -n __fish_use_subcommand -l help -d 'show this help'\n";
  text += "complete -c pipewright -n __fish_use_subcommand -l version -d 'show the version'\n";
  for (const CommandSpec& command : commands()) {
    text += fmt::format("complete -c pipewright -n __fish_use_subcommand -a {} -d {}\n",
                        command.name, fish_quote(command.summary));
    const std::string condition =
        fmt::format("complete -c pipewright -n '__fish_seen_subcommand_from {}'", command.name);
    for (const OptionSpec& option : options_of(command)) {
      text += fmt::format("{} -l {}", condition, option.name.substr(2));
      if (!option.short_name.empty()) text += fmt::format(" -s {}", option.short_name.substr(1));
      if (option.value.kind == ValueKind::kFile) text += " -r -F";
      if (option.value.kind == ValueKind::kText || option.value.kind == ValueKind::kNumber)
        text += " -x";
      if (option.value.kind == ValueKind::kChoice)
        text += fmt::format(" -x -a '{}'", fmt::join(option.value.choices, " "));
      text += fmt::format(" -d {}\n", fish_quote(option.help));
    }
    for (const ArgumentSpec& argument : command.arguments) {
      if (argument.value.kind == ValueKind::kFile) text += condition + " -F\n";
      if (argument.value.kind == ValueKind::kName)
        text += fmt::format("{} -a '{}'\n", condition, schedule_words());
      if (argument.value.kind == ValueKind::kSource)
        text += fmt::format("{} -F -a '{}'\n", condition, schedule_words());
      if (argument.value.kind == ValueKind::kChoice)
        text += fmt::format("{} -a '{}'\n", condition, fmt::join(argument.value.choices, " "));
    }
  }
  return text;
}

}  // namespace

int run_completion(const Invocation& invocation, Console& console) {
  const std::string& shell = invocation.arguments[0];
  if (shell == "bash") console.out << bash_completion();
  if (shell == "zsh") console.out << zsh_completion();
  if (shell == "fish") console.out << fish_completion();
  return kExitOk;
}

}  // namespace pipewright::cli
