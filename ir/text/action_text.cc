#include "pipewright/ir/text/action_text.h"

#include <fmt/format.h>

#include <charconv>
#include <iterator>
#include <vector>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/text/spelling.h"

namespace pipewright::ir {
namespace {

constexpr std::string_view kOverlapToken = "OVERLAP_F_B";

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }
bool is_blank(char letter) { return letter == ' ' || letter == '\t'; }
bool is_token_letter(char letter) { return (letter >= 'A' && letter <= 'Z') || letter == '_'; }

struct Span {
  size_t begin;
  size_t end;
};

Span trimmed(std::string_view text, Span span) {
  while (span.begin < span.end && is_blank(text[span.begin])) ++span.begin;
  while (span.end > span.begin && is_blank(text[span.end - 1])) --span.end;
  return span;
}

// A number below `limit` without leading zeros at `at`, which it moves behind it; -1 where there is
// none.
inline int take_number(std::string_view text, size_t* at, size_t end, int limit) {
  const size_t begin = *at;
  int64_t value = 0;
  size_t next = begin;
  while (next < end && is_digit(text[next]) && value < limit)
    value = value * 10 + (text[next++] - '0');
  if (next == begin || value >= limit || (text[begin] == '0' && next > begin + 1)) return -1;
  *at = next;
  return static_cast<int>(value);
}

// Reads a plain action at `at`, which it moves behind it. False says that something is wrong, and
// explain() finds out what.
inline bool take_part(std::string_view text, size_t* at, size_t end, ActionPart* part) {
  const int stage = take_number(text, at, end, kMaxStages);
  if (stage < 0) return false;
  const size_t token = *at;
  while (*at < end && is_token_letter(text[*at])) ++*at;
  const std::optional<ActionKind> kind = kind_of_token(text.substr(token, *at - token));
  if (!kind || *kind == ActionKind::kOverlapFB) return false;
  int microbatch = 0;
  if (info(*kind).has_microbatch) {
    microbatch = take_number(text, at, end, kMaxMicrobatches);
    if (microbatch < 0) return false;
  }
  *part = ActionPart(*kind, stage, microbatch);
  return true;
}

// The same, and nothing may follow.
bool read_part(std::string_view text, Span span, ActionPart* part) {
  size_t at = span.begin;
  return take_part(text, &at, span.end, part) && at == span.end;
}

// ---- what is wrong with a text: speed does not matter from here on

ActionTextError wrong(Rule rule, Span span, std::string message, std::string help = "") {
  return {rule, span.begin, span.end - span.begin, std::move(message), std::move(help)};
}

std::string digits_at(std::string_view text, size_t at, size_t end) {
  size_t stop = at;
  while (stop < end && is_digit(text[stop])) ++stop;
  return std::string(text.substr(at, stop - at));
}

std::string without_zeros(const std::string& digits) {
  const size_t first = digits.find_first_not_of('0');
  return first == std::string::npos ? "0" : digits.substr(first);
}

// Numbers that are too large or have leading zeros.
std::optional<ActionTextError> explain_number(std::string_view text, Span span, size_t at,
                                              std::string_view what, Rule too_large, int limit) {
  const std::string digits = digits_at(text, at, span.end);
  const Span place{at, at + digits.size()};
  const std::string plain = without_zeros(digits);
  if (plain.size() > 9 || std::stoll(plain) >= limit) {
    return wrong(
        too_large, place,
        fmt::format("{} {} is too large: want at most {}", what, backticked(digits), limit - 1));
  }
  if (plain != digits) {
    return wrong(Rule::kLeadingZero, place,
                 fmt::format("{} {} has leading zeros", what, backticked(digits)),
                 fmt::format("write `{}`", plain));
  }
  return std::nullopt;
}

std::string legacy_help(std::string_view token, std::string_view stage,
                        std::string_view microbatch) {
  if (token != "BW") return "";
  return fmt::format(
      "write `{}B{}`; the file is from before PyTorch 2.6, where `B` alone meant what is `I` now: "
      "rewrite those first",
      stage, microbatch);
}

ActionTextError explain_token(std::string_view text, Span span, Span token_span,
                              std::string_view stage) {
  std::string_view token = text.substr(token_span.begin, token_span.end - token_span.begin);
  const std::string microbatch = digits_at(text, token_span.end, span.end);
  if (token == "BW") {
    return wrong(Rule::kLegacyToken, token_span,
                 fmt::format("{} is a token from before PyTorch 2.6", backticked(token)),
                 legacy_help(token, stage, microbatch));
  }
  if (token == kOverlapToken) {
    return wrong(Rule::kCompoundWithoutParts, span,
                 fmt::format("{} names no parts",
                             backticked(text.substr(span.begin, span.end - span.begin))),
                 "write a compound as `(0F3;3B1)OVERLAP_F_B`");
  }
  std::vector<std::string_view> tokens;
  for (const ActionKindInfo& row : action_kinds()) {
    if (row.kind != ActionKind::kOverlapFB) tokens.push_back(row.token);
  }
  std::string help;
  if (const std::string_view near = nearest(token, tokens); !near.empty()) {
    help = fmt::format("did you mean `{}{}{}`?", stage, near, microbatch);
  } else {
    help = fmt::format("tokens are {}", fmt::join(tokens, ", "));
  }
  if (token.empty()) {
    return wrong(Rule::kUnknownToken, span,
                 fmt::format("{} has no token behind its stage",
                             backticked(text.substr(span.begin, span.end - span.begin))),
                 help);
  }
  return wrong(Rule::kUnknownToken, token_span,
               fmt::format("{} is not the token of an action", backticked(token)), help);
}

// For a text that read_part refuses.
ActionTextError explain_part(std::string_view text, Span span) {
  const std::string_view whole = text.substr(span.begin, span.end - span.begin);
  const std::string stage = digits_at(text, span.begin, span.end);
  if (stage.empty()) {
    // PyTorch prints a compound without parts so, and cannot read it back.
    if (whole == "-1OVERLAP_F_B" || whole == kOverlapToken) {
      return wrong(Rule::kCompoundWithoutParts, span,
                   fmt::format("{} names no parts", backticked(whole)),
                   "write a compound as `(0F3;3B1)OVERLAP_F_B`");
    }
    std::string help = "write an action as `2F0`: stage, token, microbatch";
    if (whole.front() == '"' || whole.front() == '\'') help = "remove the quotes";
    return wrong(Rule::kNoStage, span,
                 fmt::format("{} does not start with a stage", backticked(whole)), help);
  }
  if (auto error =
          explain_number(text, span, span.begin, "stage", Rule::kStageTooLarge, kMaxStages))
    return *error;

  // Anything that looks like a word counts as the token here, so that `0f1` is seen as a wrong
  // token.
  const size_t token_begin = span.begin + stage.size();
  size_t token_end = token_begin;
  const auto is_letter = [](char letter) {
    return is_token_letter(letter) || (letter >= 'a' && letter <= 'z');
  };
  while (token_end < span.end && is_token_letter(text[token_end])) ++token_end;
  std::optional<ActionKind> kind = kind_of_token(text.substr(token_begin, token_end - token_begin));
  if (!kind || *kind == ActionKind::kOverlapFB) {
    while (token_end < span.end && is_letter(text[token_end])) ++token_end;
    return explain_token(text, span, {token_begin, token_end}, stage);
  }

  const std::string_view token = text.substr(token_begin, token_end - token_begin);
  const std::string microbatch = digits_at(text, token_end, span.end);
  const Span microbatch_span{token_end, token_end + microbatch.size()};
  const size_t action_end = microbatch_span.end;
  if (info(*kind).has_microbatch && microbatch.empty()) {
    if (token_end < span.end && is_letter(text[token_end])) {  // a longer word: `0Fx`
      while (token_end < span.end && is_letter(text[token_end])) ++token_end;
      return explain_token(text, span, {token_begin, token_end}, stage);
    }
    return wrong(Rule::kMissingMicrobatch, {span.begin, token_end},
                 fmt::format("{} names no microbatch",
                             backticked(text.substr(span.begin, token_end - span.begin))),
                 fmt::format("write `{}{}0` for microbatch 0", stage, token));
  }
  if (info(*kind).has_microbatch) {
    if (auto error = explain_number(text, span, token_end, "microbatch", Rule::kMicrobatchTooLarge,
                                    kMaxMicrobatches)) {
      return *error;
    }
  } else if (!microbatch.empty()) {
    return wrong(
        Rule::kUnexpectedMicrobatch, microbatch_span,
        fmt::format("{} has no microbatch, found {}", backticked(token), backticked(microbatch)),
        fmt::format("write `{}{}`", stage, token));
  }
  const Span rest = trimmed(text, {action_end, span.end});
  return wrong(Rule::kTrailingText, rest,
               fmt::format("nothing may follow {} in its cell, found {}",
                           backticked(text.substr(span.begin, action_end - span.begin)),
                           backticked(text.substr(rest.begin, rest.end - rest.begin))));
}

std::optional<ActionTextError> parse_compound(std::string_view text, Span span, Action* action) {
  const std::string_view whole = text.substr(span.begin, span.end - span.begin);
  const size_t close = text.find(')', span.begin);
  if (close == std::string_view::npos || close >= span.end) {
    return wrong(Rule::kCompoundNotClosed, span,
                 fmt::format("the parenthesis of {} is not closed", backticked(whole)),
                 "write a compound as `(0F3;3B1)OVERLAP_F_B`, its parts divided by `;`");
  }
  const Span inside{span.begin + 1, close};
  // The second part of the common case of two; a third would be in it and be refused.
  const size_t divider = text.find(';', inside.begin);
  ActionPart parts[2];
  if (divider < close && text.substr(close + 1, span.end - close - 1) == kOverlapToken &&
      read_part(text, trimmed(text, {inside.begin, divider}), &parts[0]) &&
      read_part(text, trimmed(text, {divider + 1, close}), &parts[1]) &&
      !compound_rule(parts[0], parts[1])) {
    *action = Action::overlap(parts[0], parts[1]);
    return std::nullopt;
  }

  if (text.substr(inside.begin, inside.end - inside.begin).starts_with('(')) {
    return wrong(Rule::kCompoundParts, span,
                 fmt::format("{} has a compound as a part", backticked(whole)),
                 "a compound pairs one F with one B or I");
  }
  const Span suffix{close + 1, span.end};
  if (text.substr(suffix.begin, suffix.end - suffix.begin) != kOverlapToken) {
    const std::string_view found = text.substr(suffix.begin, suffix.end - suffix.begin);
    return wrong(
        Rule::kCompoundSuffix, found.empty() ? span : suffix,
        found.empty()
            ? fmt::format("{} does not end in `OVERLAP_F_B`", backticked(whole))
            : fmt::format("want `OVERLAP_F_B` right behind the parts, found {}", backticked(found)),
        fmt::format("write {}", backticked(std::string(whole.substr(0, close + 1 - span.begin)) +
                                           std::string(kOverlapToken))));
  }
  const Span content = trimmed(text, inside);
  if (content.begin == content.end) {
    return wrong(Rule::kCompoundWithoutParts, span,
                 fmt::format("{} names no parts", backticked(whole)),
                 "write a compound as `(0F3;3B1)OVERLAP_F_B`");
  }
  size_t count = 0;
  for (size_t begin = inside.begin; begin <= close; ++count) {
    const size_t end = std::min(text.find(';', begin), close);
    const Span one = trimmed(text, {begin, end});
    ActionPart part;
    if (one.begin == one.end) {
      return wrong(Rule::kCompoundArity, span,
                   fmt::format("part {} of {} is empty", count, backticked(whole)));
    }
    if (!read_part(text, one, &part)) return explain_part(text, one);
    if (count < 2) parts[count] = part;
    begin = end + 1;
  }
  if (count != 2) {
    return wrong(
        Rule::kCompoundArity, span,
        fmt::format("{} has {} part{}, want 2", backticked(whole), count, count == 1 ? "" : "s"));
  }
  if (*compound_rule(parts[0], parts[1]) == Rule::kCompoundParts) {
    return wrong(Rule::kCompoundParts, span,
                 fmt::format("{} does not pair one F with one B or I", backticked(whole)),
                 "write the two as actions of their own");
  }
  return wrong(
      Rule::kCompoundSameMicrobatch, span,
      fmt::format("the parts of {} are of one microbatch: the backward needs the forward's result",
                  backticked(whole)),
      "write the two as actions of their own");
}

}  // namespace

std::optional<Rule> compound_rule(ActionPart first, ActionPart second) {
  const bool pairs =
      (first.kind() == ActionKind::kForward && gives_input_gradient(second.kind())) ||
      (second.kind() == ActionKind::kForward && gives_input_gradient(first.kind()));
  if (!pairs) return Rule::kCompoundParts;
  if (first.microbatch() == second.microbatch()) return Rule::kCompoundSameMicrobatch;
  return std::nullopt;
}

size_t take_plain_action(std::string_view text, size_t at, Action* action) {
  ActionPart part;
  if (!take_part(text, &at, text.size(), &part)) return std::string_view::npos;
  *action = part;
  return at;
}

std::optional<ActionTextError> parse_action(std::string_view text, Action* action) {
  const Span span = trimmed(text, {0, text.size()});
  if (span.begin == span.end) {
    *action = Action();
    return std::nullopt;
  }
  if (text[span.begin] == '(') return parse_compound(text, span, action);
  ActionPart part;
  if (!read_part(text, span, &part)) return explain_part(text, span);
  *action = part;
  return std::nullopt;
}

namespace {

void append_number(int number, std::string* text) {
  char digits[12];
  const auto [end, error] = std::to_chars(std::begin(digits), std::end(digits), number);
  text->append(digits, end);
}

void append_part(ActionPart part, std::string* text) {
  const ActionKindInfo& row = info(part.kind());
  append_number(part.stage(), text);
  text->append(row.token);
  if (row.has_microbatch) append_number(part.microbatch(), text);
}

}  // namespace

void append_action(const Action& action, std::string* text) {
  const auto parts = action.parts();
  if (parts.size() == 1) {
    append_part(parts[0], text);
  } else if (parts.size() == 2) {
    text->push_back('(');
    append_part(parts[0], text);
    text->push_back(';');
    append_part(parts[1], text);
    text->push_back(')');
    text->append(kOverlapToken);
  }
}

std::string to_string(const Action& action) {
  std::string text;
  append_action(action, &text);
  return text;
}

}  // namespace pipewright::ir
