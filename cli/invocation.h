#ifndef PIPEWRIGHT_CLI_INVOCATION_H_
#define PIPEWRIGHT_CLI_INVOCATION_H_

#include <charconv>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "pipewright/ir/diagnostic.h"

namespace pipewright::cli {

// Thrown for an invalid command line; what() is the error message.
class UsageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// "--slow: expected a rank, got `x`"
inline UsageError wrong_value(std::string_view what, std::string_view expected,
                              std::string_view got) {
  return UsageError(std::string(what).append(": expected ").append(expected).append(", got ") +
                    ir::backticked(got));
}

// The number that is the text of an option or an argument, `what`. Throws wrong_value() for other
// texts, and for a number that is not valid.
template <typename Number, typename IsValid>
Number number_of(std::string_view what, std::string_view text, std::string_view expected,
                 const IsValid& is_valid) {
  Number number{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stop != text.data() + text.size() || !is_valid(number))
    throw wrong_value(what, expected, text);
  return number;
}

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
