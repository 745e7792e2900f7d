#include "pipewright/cli/parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/files.h"
#include "pipewright/cli/help.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/text/header.h"
#include "pipewright/ir/text/spelling.h"

// Parses the command line in two steps, both driven by the command table: split() separates
// options, their values and arguments, as getopt_long does; check() validates them for the command.

namespace pipewright::cli {
namespace {

using Words = std::span<const char* const>;

std::string with_hint(std::string message, const std::string& hint) {
  return hint.empty() ? message : message + "; " + hint;
}

void check_value(std::string_view what, const ValueSpec& spec, const std::string& value) {
  switch (spec.kind) {
    case ValueKind::kNone:
    case ValueKind::kText:
      return;
    case ValueKind::kFile:
    case ValueKind::kName:
    case ValueKind::kSource:
      if (!value.empty()) return;
      throw wrong_value(what, "a name", value);
    case ValueKind::kNumber:
      number_of<int>(what, value, fmt::format("a whole number from 1 to {}", spec.most),
                     [&](int number) { return number >= 1 && number <= spec.most; });
      return;
    case ValueKind::kChoice: {
      if (std::ranges::find(spec.choices, value) != spec.choices.end()) return;
      std::vector<std::string> choices;
      for (const std::string_view choice : spec.choices)
        choices.push_back(ir::choice_in_words(choice));
      throw UsageError(with_hint(fmt::format("{}: expected one of {}, got {}", what,
                                             fmt::join(choices, ", "), ir::backticked(value)),
                                 ir::did_you_mean(value, spec.choices)));
    }
  }
}

bool is_option(std::string_view word) { return word.size() > 1 && word[0] == '-'; }

UsageError unknown_option(const std::string& where, std::string_view option,
                          std::span<const std::string_view> known) {
  return UsageError(with_hint(fmt::format("`{}` has no option {}", where, ir::backticked(option)),
                              ir::did_you_mean(option, known)));
}

// The words of one command, split but not checked.
struct SplitWords {
  Invocation invocation;
  bool help = false;
  std::optional<std::string> unknown_option;  // the first one, if any
};

// The option that `word` names, long or short.
const OptionSpec* find_option(const CommandSpec& command, std::string_view word) {
  for (const std::span<const OptionSpec> options :
       {std::span<const OptionSpec>(command.options), common_options()}) {
    for (const OptionSpec& option : options) {
      if (word == option.name || (!option.short_name.empty() && word == option.short_name))
        return &option;
    }
  }
  return nullptr;
}

// Options may come after arguments. The value of an option is the next word, even if it starts with
// a dash, or the rest of the same word: --name=value, -nvalue. The values of a repeated option add
// up if it accumulates; otherwise the last one counts. All words after -- are arguments; so are all
// words after the name of a program.
SplitWords split(const CommandSpec& command, Words words) {
  SplitWords split;
  bool only_arguments = false;
  for (size_t index = 0; index < words.size(); ++index) {
    const std::string_view word = words[index];
    if (only_arguments || !is_option(word)) {
      split.invocation.arguments.emplace_back(word);
      if (command.takes_program) {
        for (const char* rest : words.subspan(index + 1))
          split.invocation.arguments.emplace_back(rest);
        break;
      }
      continue;
    }
    if (word == "--") {
      only_arguments = true;
      continue;
    }
    const bool is_long = word.starts_with("--");
    const size_t name_size = is_long ? std::min(word.find('='), word.size()) : 2;
    const OptionSpec* option = find_option(command, word.substr(0, name_size));
    std::optional<std::string> value;
    if (name_size < word.size()) value = word.substr(name_size + (is_long ? 1 : 0));
    if (option == nullptr) {
      if (!split.unknown_option)
        split.unknown_option = word.substr(0, std::min(word.find('='), word.size()));
      continue;
    }
    if (option->value.kind == ValueKind::kNone) {
      if (value) throw UsageError(fmt::format("{} takes no value", option->name));
      value = "";
    } else if (!value) {
      if (++index == words.size())
        throw UsageError(fmt::format("{}: expected a value, got none", option->name));
      value = words[index];
    }
    if (option->name == "--help") split.help = true;
    const auto [entry, is_new] =
        split.invocation.options.try_emplace(std::string(option->name), *value);
    if (!is_new) entry->second = option->accumulates ? entry->second + "," + *value : *value;
  }
  return split;
}

void check_number_of_arguments(const CommandSpec& command, std::span<const std::string> given) {
  const size_t most = command.arguments.size();
  std::string missing;
  for (size_t index = given.size(); index < most; ++index) {
    const ArgumentSpec& argument = command.arguments[index];
    if (!argument.optional)
      missing += fmt::format("{}{}: {}", missing.empty() ? "missing " : "; and ",
                             argument.value.shown, argument.help);
  }
  if (!missing.empty()) throw UsageError(missing);
  const bool open = command.takes_program || (most > 0 && command.arguments.back().repeats);
  if (given.size() > most && !open)
    throw UsageError(fmt::format("unexpected argument {}", ir::backticked(given[most])));
}

void check(const CommandSpec& command, const std::string& where, const SplitWords& split) {
  if (split.unknown_option) {
    std::vector<std::string_view> known;
    for (const OptionSpec& option : command.options) known.push_back(option.name);
    for (const OptionSpec& option : common_options()) known.push_back(option.name);
    throw unknown_option(where, *split.unknown_option, known);
  }
  const Invocation& invocation = split.invocation;
  check_number_of_arguments(command, invocation.arguments);
  // stdin can be read only once.
  size_t stdins = invocation.text("--costs") == "-" ? 1 : 0;
  const size_t program_words = command.takes_program ? invocation.arguments.size() - 1 : 0;
  for (size_t index = 0; index < invocation.arguments.size() - program_words; ++index) {
    const ValueSpec& value = command.arguments[std::min(index, command.arguments.size() - 1)].value;
    check_value(value.shown, value, invocation.arguments[index]);
    stdins += value.kind == ValueKind::kSource && invocation.arguments[index] == "-";
  }
  for (const auto& [name, value] : invocation.options)
    check_value(name, find_option(command, name)->value, value);
  if (stdins > 1) throw UsageError("`-` is stdin, and can be used only once");
}

ColorMode color_mode(const Invocation& invocation) {
  const std::string color = invocation.text("--color").value_or("auto");
  return color == "always"  ? ColorMode::kAlways
         : color == "never" ? ColorMode::kNever
                            : ColorMode::kAuto;
}

// Appends the name of the command to `where`, for errors.
int parse_and_run(Words words, Console& console, std::string* where) {
  if (words.empty()) {
    console.err << program_help();
    return kExitTrouble;
  }
  const std::string_view word = words.front();
  if (word == "--help" || word == "-h") {
    console.out << program_help();
    return kExitOk;
  }
  if (word == "--version") {
    console.out << "pipewright " << kVersion << '\n';
    return kExitOk;
  }
  if (is_option(word)) {
    constexpr std::string_view kKnown[] = {"--help", "--version"};
    throw unknown_option(*where, word.substr(0, word.find('=')), kKnown);
  }
  std::vector<std::string_view> names;
  for (const CommandSpec& command : commands()) {
    names.push_back(command.name);
    if (command.name != word) continue;
    *where += fmt::format(" {}", command.name);
    const SplitWords split = cli::split(command, words.subspan(1));
    if (split.help) {
      console.out << command_help(command);
      return kExitOk;
    }
    check(command, *where, split);
    configure({color_mode(split.invocation), split.invocation.number("--width"),
               split.invocation.number("--max-errors")},
              &console);
    return command.run(split.invocation, console);
  }
  throw UsageError(with_hint(fmt::format("there is no command {}", ir::backticked(word)),
                             ir::did_you_mean(word, names)));
}

}  // namespace

int run_program(int argc, const char* const* argv, Console& console) {
  configure({}, &console);
  std::string where = "pipewright";
  try {
    const Words words(argv, static_cast<size_t>(argc));
    int code = parse_and_run(words.subspan(std::min<size_t>(1, words.size())), console, &where);
    console.out.flush();
    if (!console.out) {
      print_trouble("cannot write to stdout", console);
      code = kExitTrouble;
    }
    return code;
  } catch (const Failed& failed) {
    return failed.exit_code;
  } catch (const UsageError& error) {
    print_trouble(error.what(), console);
    console.err << fmt::format("for details, run `{} --help`\n", where);
  } catch (const FileError& error) {
    print_trouble(error.what(), console);
  } catch (const std::bad_alloc&) {
    print_trouble("out of memory", console);
  } catch (const std::exception& error) {
    print_trouble(fmt::format("this is a bug in pipewright: {}", error.what()), console);
  }
  return kExitTrouble;
}

}  // namespace pipewright::cli
