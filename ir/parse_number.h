#ifndef PIPEWRIGHT_IR_PARSE_NUMBER_H_
#define PIPEWRIGHT_IR_PARSE_NUMBER_H_

#include <charconv>
#include <optional>
#include <string_view>

namespace pipewright::ir {

// The integer in [1, most] whose decimal digits are exactly `text`, without leading zeros or a
// sign; nullopt for any other text. A pure function; any thread.
inline std::optional<int> parse_positive(std::string_view text, int most) {
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || number < 1 || number > most || text.front() == '0')
    return std::nullopt;
  return number;
}

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_PARSE_NUMBER_H_
