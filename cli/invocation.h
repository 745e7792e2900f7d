#ifndef PIPEWRIGHT_CLI_INVOCATION_H_
#define PIPEWRIGHT_CLI_INVOCATION_H_

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pipewright::cli {

// Thrown for an invalid command line; what() is the error message.
class UsageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Thrown to end a command after its errors have been printed.
struct Failed {
  int exit_code;
};

// The arguments and options given to a command, checked against its row in the command table.
struct Invocation {
  // One per ArgumentSpec, then the further values of one that repeats, or a program's arguments.
  std::vector<std::string> arguments;
  // By long name; flags have an empty value.
  std::map<std::string, std::string> options;

  bool has(const std::string& option) const { return options.contains(option); }

  std::optional<std::string> text(const std::string& option) const {
    const auto entry = options.find(option);
    return entry == options.end() ? std::nullopt : std::optional(entry->second);
  }

  // The value of an option of kind kNumber.
  std::optional<int> number(const std::string& option) const {
    const auto entry = options.find(option);
    return entry == options.end() ? std::nullopt : std::optional(std::stoi(entry->second));
  }
};

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_INVOCATION_H_
