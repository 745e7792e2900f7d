#include "pipewright/cli/parse.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <exception>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/files.h"
#include "pipewright/cli/help.h"
#include "pipewright/cli/usage_error.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/text/spelling.h"

namespace pipewright::cli {
namespace {

std::string with_hint(std::string message, const std::string& hint) {
  return hint.empty() ? message : message + "; " + hint;
}

void check_value(const std::string& what, const ValueSpec& spec, const std::string& value) {
  switch (spec.kind) {
    case ValueKind::kNone:
    case ValueKind::kText:
    case ValueKind::kFile:
    case ValueKind::kSource:
      return;
    case ValueKind::kNumber: {
      int number = 0;
      const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), number);
      if (error == std::errc() && stop == value.data() + value.size() && number >= 1) return;
      throw UsageError(
          fmt::format("{} wants a whole number from 1, found {}", what, ir::backticked(value)));
    }
    case ValueKind::kChoice:
      if (std::ranges::find(spec.choices, value) != spec.choices.end()) return;
      throw UsageError(with_hint(fmt::format("{} wants one of {}, found {}", what,
                                             fmt::join(spec.choices, ", "), ir::backticked(value)),
                                 ir::did_you_mean(value, spec.choices)));
  }
}

// One command in CLI11's terms. It splits the words; what they may be is checked here, against the
// table.
struct ParsedCommand {
  const CommandSpec* spec;
  CLI::App* app;
  std::vector<std::string> arguments;
  std::vector<std::pair<const OptionSpec*, CLI::Option*>> options;
};

void add_options(CLI::App* app, std::span<const OptionSpec> specs,
                 std::vector<std::pair<const OptionSpec*, CLI::Option*>>* options) {
  for (const OptionSpec& spec : specs) {
    if (spec.name == "--help") continue;  // CLI11 has its own
    const std::string names = spec.short_name.empty()
                                  ? std::string(spec.name)
                                  : fmt::format("{},{}", spec.short_name, spec.name);
    CLI::Option* option = spec.value.kind == ValueKind::kNone ? app->add_flag(names)
                                                              : app->add_option(names)->expected(1);
    options->emplace_back(&spec, option->take_last());
  }
}

bool is_option(const std::string& word) { return word.size() > 1 && word[0] == '-'; }

// Words that look like options and are none of `flags`, the first of them.
void refuse_options(const std::vector<std::string>& words,
                    const std::vector<std::string_view>& flags, const std::string& where) {
  const auto word = std::ranges::find_if(words, is_option);
  if (word == words.end()) return;
  const std::string flag = word->substr(0, word->find('='));
  throw UsageError(with_hint(fmt::format("{} has no option {}", where, ir::backticked(flag)),
                             ir::did_you_mean(flag, flags)));
}

int run_command(ParsedCommand& parsed, Console& console) {
  const CommandSpec& spec = *parsed.spec;
  const std::string where = fmt::format("`pipewright {}`", spec.name);
  std::vector<std::string_view> flags = {"--help"};
  for (const auto& [option, unused] : parsed.options) flags.push_back(option->name);
  // Options that the table does not have; a word behind one may be meant as its value.
  std::vector<std::string>& arguments = parsed.arguments;
  // What follows a program is the program's own.
  std::vector<std::string> unknown = parsed.app->remaining();
  if (spec.takes_program && unknown.size() > 1) unknown.resize(1);
  refuse_options(unknown, flags, where);
  if (arguments.size() < spec.arguments.size()) {
    throw UsageError(fmt::format("{} wants {}: {}", where,
                                 spec.arguments[arguments.size()].value.shown,
                                 spec.arguments[arguments.size()].help));
  }
  if (arguments.size() > spec.arguments.size() && !spec.takes_program) {
    throw UsageError(fmt::format("{} does not take {}", where,
                                 ir::backticked(arguments[spec.arguments.size()])));
  }

  Invocation invocation;
  for (size_t index = 0; index < spec.arguments.size(); ++index) {
    check_value(std::string(spec.arguments[index].value.shown), spec.arguments[index].value,
                arguments[index]);
  }
  invocation.arguments = std::move(arguments);
  for (const auto& [option, given] : parsed.options) {
    if (given->count() == 0) continue;
    if (option->value.kind == ValueKind::kNone && given->results().back() != "true") {
      throw UsageError(fmt::format("{} takes no value", option->name));
    }
    const std::string value = option->value.kind == ValueKind::kNone ? "" : given->results().back();
    check_value(std::string(option->name), option->value, value);
    invocation.options[std::string(option->name)] = value;
  }
  // stdin is read once.
  size_t stdins = invocation.text("--costs") == "-" ? 1 : 0;
  for (size_t index = 0; index < spec.arguments.size(); ++index) {
    stdins += spec.arguments[index].value.kind == ValueKind::kSource &&
              invocation.arguments[index] == "-";
  }
  if (stdins > 1) throw UsageError("- is stdin, and can be read for one thing only");
  const std::string color = invocation.text("--color").value_or("auto");
  configure(color == "always"  ? ColorMode::kAlways
            : color == "never" ? ColorMode::kNever
                               : ColorMode::kAuto,
            static_cast<size_t>(invocation.number("--width").value_or(0)), &console);
  return spec.run(invocation, console);
}

int parse_and_run(int argc, const char* const* argv, Console& console) {
  CLI::App app;
  app.name("pipewright");
  app.set_help_flag("-h,--help");
  app.set_version_flag("--version", fmt::format("pipewright {}", kVersion));
  app.allow_extras();
  app.require_subcommand(0, 1);
  std::vector<std::unique_ptr<ParsedCommand>> parsed;
  std::vector<std::string_view> names;
  for (const CommandSpec& spec : commands()) {
    ParsedCommand& command = *parsed.emplace_back(std::make_unique<ParsedCommand>());
    command.spec = &spec;
    command.app = app.add_subcommand(std::string(spec.name));
    command.app->set_help_flag("-h,--help");
    if (spec.takes_program) {
      command.app->prefix_command();
    } else {
      command.app->allow_extras();
      command.app->add_option("arguments", command.arguments);
    }
    add_options(command.app, spec.options, &command.options);
    add_options(command.app, common_options(), &command.options);
    names.push_back(spec.name);
  }

  // Words behind -- are arguments, whatever they look like; CLI11 would hand them to the program.
  const char* const* end = argv + argc;
  const char* const* dashes =
      std::find_if(argv, end, [](const char* word) { return std::string_view(word) == "--"; });
  const std::vector<std::string> behind(std::min(dashes + 1, end), end);

  try {
    app.parse(static_cast<int>(dashes - argv), argv);
  } catch (const CLI::CallForHelp&) {
    for (const auto& command : parsed) {
      if (command->app->parsed()) {
        console.out << command_help(*command->spec);
        return kExitOk;
      }
    }
    console.out << program_help();
    return kExitOk;
  } catch (const CLI::CallForVersion& version) {
    console.out << version.what() << '\n';
    return kExitOk;
  } catch (const CLI::ArgumentMismatch& error) {  // "--format: 1 required ..."
    const std::string text = error.what();
    throw UsageError(fmt::format("{} wants a value", text.substr(0, text.find(':'))));
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }

  // Words in front of the command.
  if (const std::vector<std::string> rest = app.remaining(); !rest.empty()) {
    if (!is_option(rest.front())) {
      throw UsageError(
          with_hint(fmt::format("there is no command {}", ir::backticked(rest.front())),
                    ir::did_you_mean(rest.front(), names)));
    }
    refuse_options(rest, {"--help", "--version"}, "`pipewright`");
  }
  for (const auto& command : parsed) {
    if (!command->app->parsed()) continue;
    if (command->spec->takes_program) {
      command->arguments = command->app->remaining();
      // The program's own --.
      if (!command->arguments.empty() && dashes != end) command->arguments.emplace_back("--");
    }
    command->arguments.insert(command->arguments.end(), behind.begin(), behind.end());
    return run_command(*command, console);
  }
  console.err << program_help();
  return kExitTrouble;
}

}  // namespace

int run_program(int argc, const char* const* argv, Console& console) {
  configure(ColorMode::kAuto, 0, &console);
  try {
    int code = parse_and_run(argc, argv, console);
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
    console.err << "`pipewright --help` and `pipewright COMMAND --help` tell more\n";
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
