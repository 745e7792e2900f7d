#ifndef PIPEWRIGHT_IR_TEXT_SCAN_ACTION_H_
#define PIPEWRIGHT_IR_TEXT_SCAN_ACTION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "pipewright/ir/action.h"

// The scanner used by parse_action: reads a plain action such as "2SEND_F5" quickly and returns
// only whether it succeeded. action_text.h finds out what is wrong with a rejected text.
// Inline because reading a CSV spends most of its time here. Pure functions; any thread.

namespace pipewright::ir {

inline constexpr std::string_view kOverlapToken = "OVERLAP_F_B";

// A range of bytes in a text.
struct TextSpan {
  size_t begin;
  size_t end;

  bool empty() const { return begin == end; }
  std::string_view of(std::string_view text) const { return text.substr(begin, end - begin); }
};

inline bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }
inline bool is_token_letter(char letter) {
  return (letter >= 'A' && letter <= 'Z') || letter == '_';
}

// Between the words of a line, the end of which may be that of Windows.
inline bool is_blank(char letter) { return letter == ' ' || letter == '\t' || letter == '\r'; }

// `span` without the spaces and tabs at both ends.
inline TextSpan trimmed(std::string_view text, TextSpan span) {
  const auto is_space = [](char letter) { return letter == ' ' || letter == '\t'; };
  while (span.begin < span.end && is_space(text[span.begin])) ++span.begin;
  while (span.end > span.begin && is_space(text[span.end - 1])) --span.end;
  return span;
}

// Reads a number below `limit` without leading zeros and advances `at` past it. Returns -1, without
// moving `at`, if there is none.
inline int scan_number(std::string_view text, size_t* at, size_t end, int limit) {
  const size_t begin = *at;
  int64_t value = 0;
  size_t next = begin;
  while (next < end && is_digit(text[next]) && value < limit)
    value = value * 10 + (text[next++] - '0');
  if (next == begin || value >= limit || (text[begin] == '0' && next > begin + 1)) return -1;
  *at = next;
  return static_cast<int>(value);
}

// Reads a plain action and advances `at` past it. Returns false if there is none.
inline bool scan_part(std::string_view text, size_t* at, size_t end, ActionPart* part) {
  const int stage = scan_number(text, at, end, kMaxStages);
  if (stage < 0) return false;
  const size_t token = *at;
  while (*at < end && is_token_letter(text[*at])) ++*at;
  const std::optional<ActionKind> kind = kind_of_token(text.substr(token, *at - token));
  if (!kind || *kind == ActionKind::kOverlapFB) return false;
  int microbatch = 0;
  if (info(*kind).has_microbatch) {
    microbatch = scan_number(text, at, end, kMaxMicrobatches);
    if (microbatch < 0) return false;
  }
  *part = ActionPart(*kind, stage, microbatch);
  return true;
}

// Whether the whole of `span` is one plain action, which is stored in `part`.
inline bool scan_whole_part(std::string_view text, TextSpan span, ActionPart* part) {
  size_t at = span.begin;
  return scan_part(text, &at, span.end, part) && at == span.end;
}

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_SCAN_ACTION_H_
