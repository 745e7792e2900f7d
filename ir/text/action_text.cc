#include "pipewright/ir/text/action_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/text/scan_action.h"
#include "pipewright/ir/text/spelling.h"

namespace pipewright::ir {
namespace {

// Finds out why a text is not an action: the rule that it violates, the bytes that are wrong, and
// how to fix them. parse_action calls this once its fast path has failed, so speed does not matter
// here.

// For a `span` that is not a plain action: scan_whole_part returned false. Not empty.
ActionTextError explain_part(std::string_view text, TextSpan span);

// For a `span` that starts with a parenthesis and is not a valid compound.
ActionTextError explain_compound(std::string_view text, TextSpan span);

// `span` starts with a parenthesis.
std::optional<ActionTextError> parse_compound(std::string_view text, TextSpan span,
                                              Action* action) {
  const size_t close = std::min(text.find(')', span.begin), span.end);
  // If there is a third part, it ends up in the second one, which then fails to parse.
  const size_t divider = text.find(';', span.begin);
  ActionPart first, second;
  if (close < span.end && divider < close &&
      TextSpan{close + 1, span.end}.of(text) == kOverlapToken &&
      scan_whole_part(text, trimmed(text, {span.begin + 1, divider}), &first) &&
      scan_whole_part(text, trimmed(text, {divider + 1, close}), &second) &&
      !compound_rule(first, second)) {
    *action = Action::overlap(first, second);
    return std::nullopt;
  }
  return explain_compound(text, span);
}

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
  if (!scan_part(text, &at, text.size(), &part)) return std::string_view::npos;
  *action = part;
  return at;
}

std::optional<ActionTextError> parse_action(std::string_view text, Action* action) {
  const TextSpan span = trimmed(text, {0, text.size()});
  if (span.empty()) {
    *action = Action();
    return std::nullopt;
  }
  if (text[span.begin] == '(') return parse_compound(text, span, action);
  ActionPart part;
  if (!scan_whole_part(text, span, &part)) return explain_part(text, span);
  *action = part;
  return std::nullopt;
}

void report(ActionTextError error, const Place& place, Diagnostics* diagnostics) {
  diagnostics->error(error.rule, std::move(error.message), place).help = std::move(error.help);
}

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

namespace {

constexpr std::string_view kCompoundHelp = "write a compound as `(0F3;3B1)OVERLAP_F_B`";
constexpr std::string_view kSeparately = "write the parts as separate actions";

bool is_any_letter(char letter) {
  return is_token_letter(letter) || (letter >= 'a' && letter <= 'z');
}

// The end of the run of letters at `at` for which `is_part` is true.
template <typename IsPart>
size_t end_of(std::string_view text, size_t at, size_t end, IsPart is_part) {
  while (at < end && is_part(text[at])) ++at;
  return at;
}

std::string digits_at(std::string_view text, size_t at, size_t end) {
  return std::string(text.substr(at, end_of(text, at, end, is_digit) - at));
}

std::string without_zeros(const std::string& digits) {
  const size_t first = digits.find_first_not_of('0');
  return first == std::string::npos ? "0" : digits.substr(first);
}

ActionTextError wrong(Rule rule, TextSpan span, std::string message, std::string help = "") {
  return {rule, span.begin, span.end - span.begin, std::move(message), std::move(help)};
}

ActionTextError without_parts(std::string_view text, TextSpan span) {
  return wrong(Rule::kCompoundWithoutParts, span,
               fmt::format("{} has no parts", backticked(span.of(text))),
               std::string(kCompoundHelp));
}

// A number that is too large or has leading zeros.
std::optional<ActionTextError> explain_number(std::string_view text, TextSpan span, size_t at,
                                              std::string_view what, Rule too_large, int limit) {
  const std::string digits = digits_at(text, at, span.end);
  const TextSpan place{at, at + digits.size()};
  const std::string plain = without_zeros(digits);
  if (plain.size() > 9 || std::stoll(plain) >= limit) {
    return wrong(too_large, place,
                 fmt::format("{} is too large: expected at most {}, got {}", what, limit - 1,
                             backticked(digits)));
  }
  if (plain != digits) {
    return wrong(Rule::kLeadingZero, place,
                 fmt::format("{} {} has leading zeros", what, backticked(digits)),
                 fmt::format("write `{}`", plain));
  }
  return std::nullopt;
}

// The action that was meant by a token which is nearly `token`, as it can be written. Empty if the
// number is not one that it can have.
std::string corrected(std::string_view stage, std::string_view token, std::string_view microbatch) {
  const bool has_microbatch = info(*kind_of_token(token)).has_microbatch;
  const std::string text = fmt::format("{}{}{}", stage, token,
                                       !has_microbatch      ? ""
                                       : microbatch.empty() ? std::string_view("0")
                                                            : microbatch);
  ActionPart part;
  return scan_whole_part(text, {0, text.size()}, &part) ? text : "";
}

// A token that is not one of a plain action.
ActionTextError explain_token(std::string_view text, TextSpan span, TextSpan token_span,
                              std::string_view stage) {
  const std::string_view token = token_span.of(text);
  const std::string microbatch = digits_at(text, token_span.end, span.end);
  if (token == "BW") {
    const std::string current = corrected(stage, "B", microbatch);
    return wrong(
        Rule::kLegacyToken, token_span, "`BW` is a token from before PyTorch 2.6",
        fmt::format("write `{}`; in files from before PyTorch 2.6 a lone `B` means `I`, so "
                    "replace those first",
                    current.empty() ? "B" : current));
  }
  if (token == kOverlapToken) return without_parts(text, span);
  std::vector<std::string_view> tokens;
  for (const ActionKindInfo& row : action_kinds()) {
    if (row.kind != ActionKind::kOverlapFB) tokens.push_back(row.token);
  }
  const std::string_view near = nearest(token, tokens);
  const std::string meant = near.empty() ? "" : corrected(stage, near, microbatch);
  std::string help = meant.empty() ? fmt::format("the tokens are {}", fmt::join(tokens, ", "))
                                   : fmt::format("did you mean `{}`?", meant);
  if (token.empty()) {
    return wrong(Rule::kUnknownToken, span,
                 fmt::format("{} has no token after its stage", backticked(span.of(text))),
                 std::move(help));
  }
  return wrong(Rule::kUnknownToken, token_span, fmt::format("unknown token {}", backticked(token)),
               std::move(help));
}

ActionTextError explain_missing_stage(std::string_view text, TextSpan span) {
  const std::string_view whole = span.of(text);
  // PyTorch prints a compound without parts as "-1OVERLAP_F_B".
  if (whole == "-1OVERLAP_F_B" || whole == kOverlapToken) return without_parts(text, span);
  const bool quoted = whole.front() == '"' || whole.front() == '\'';
  return wrong(Rule::kNoStage, span,
               fmt::format("{} does not start with a stage", backticked(whole)),
               quoted ? "remove the quotes" : "write an action as `2F0`: stage, token, microbatch");
}

// How to write the parts of a compound whose parentheses or suffix are wrong: a help that is right,
// or empty. `inside` is what is, or would be, between the parentheses.
std::string compound_help(std::string_view text, TextSpan inside) {
  const size_t divider = std::min(text.find(';', inside.begin), inside.end);
  ActionPart first, second;
  if (divider == inside.end ||
      !scan_whole_part(text, trimmed(text, {inside.begin, divider}), &first) ||
      !scan_whole_part(text, trimmed(text, {divider + 1, inside.end}), &second))
    return "";
  if (compound_rule(first, second)) return std::string(kSeparately);
  return fmt::format("write `({}){}`", inside.of(text), kOverlapToken);
}

ActionTextError explain_part(std::string_view text, TextSpan span) {
  const std::string stage = digits_at(text, span.begin, span.end);
  if (stage.empty()) return explain_missing_stage(text, span);
  if (auto error =
          explain_number(text, span, span.begin, "stage", Rule::kStageTooLarge, kMaxStages))
    return *error;

  const size_t token_begin = span.begin + stage.size();
  const size_t token_end = end_of(text, token_begin, span.end, is_token_letter);
  // Lower-case letters count as part of an unknown token, so that `0f1` is reported as one.
  const auto unknown_token = [&] {
    return explain_token(text, span,
                         {token_begin, end_of(text, token_end, span.end, is_any_letter)}, stage);
  };
  const std::string_view token = TextSpan{token_begin, token_end}.of(text);
  const std::optional<ActionKind> kind = kind_of_token(token);
  if (!kind || *kind == ActionKind::kOverlapFB) return unknown_token();

  const std::string microbatch = digits_at(text, token_end, span.end);
  const size_t action_end = token_end + microbatch.size();
  if (info(*kind).has_microbatch && microbatch.empty()) {
    const bool longer_word = token_end < span.end && is_any_letter(text[token_end]);  // `0Fx`
    if (longer_word) return unknown_token();
    const TextSpan action{span.begin, token_end};
    return wrong(Rule::kMissingMicrobatch, action,
                 fmt::format("{} has no microbatch", backticked(action.of(text))),
                 fmt::format("write `{}{}0` for microbatch 0", stage, token));
  }
  if (info(*kind).has_microbatch) {
    if (auto error = explain_number(text, span, token_end, "microbatch", Rule::kMicrobatchTooLarge,
                                    kMaxMicrobatches)) {
      return *error;
    }
  } else if (!microbatch.empty()) {
    return wrong(
        Rule::kUnexpectedMicrobatch, {token_end, action_end},
        fmt::format("{} takes no microbatch, got {}", backticked(token), backticked(microbatch)),
        fmt::format("write `{}{}`", stage, token));
  }
  const TextSpan rest = trimmed(text, {action_end, span.end});
  return wrong(Rule::kTrailingText, rest,
               fmt::format("expected the end of the cell after {}, got {}",
                           backticked(TextSpan{span.begin, action_end}.of(text)),
                           backticked(rest.of(text))));
}

ActionTextError explain_compound(std::string_view text, TextSpan span) {
  const std::string_view whole = span.of(text);
  const size_t close = text.find(')', span.begin);
  if (close == std::string_view::npos || close >= span.end) {
    TextSpan inside{span.begin + 1, span.end};
    if (whole.ends_with(kOverlapToken)) inside.end -= kOverlapToken.size();
    const std::string help = compound_help(text, trimmed(text, inside));
    return wrong(
        Rule::kCompoundNotClosed, span,
        fmt::format("{} has no closing parenthesis", backticked(whole)),
        help.empty() ? fmt::format("{}, with a `;` between its parts", kCompoundHelp) : help);
  }
  const TextSpan inside{span.begin + 1, close};
  if (inside.of(text).starts_with('(')) {
    return wrong(Rule::kCompoundParts, span,
                 fmt::format("{} has a compound as a part", backticked(whole)),
                 "a compound pairs one F with one B or I");
  }
  const TextSpan suffix{close + 1, span.end};
  if (suffix.of(text) != kOverlapToken) {
    return wrong(Rule::kCompoundSuffix, suffix.empty() ? span : suffix,
                 suffix.empty()
                     ? fmt::format("{} does not end in `OVERLAP_F_B`", backticked(whole))
                     : fmt::format("expected `OVERLAP_F_B` directly after the parts, got {}",
                                   backticked(suffix.of(text))),
                 compound_help(text, inside));
  }
  if (trimmed(text, inside).empty()) return without_parts(text, span);

  ActionPart parts[2];
  size_t count = 0;
  for (size_t begin = inside.begin; begin <= close; ++count) {
    const size_t end = std::min(text.find(';', begin), close);
    const TextSpan one = trimmed(text, {begin, end});
    ActionPart part;
    if (one.empty()) {
      return wrong(Rule::kCompoundArity, span,
                   fmt::format("part {} of {} is empty", count + 1, backticked(whole)));
    }
    if (!scan_whole_part(text, one, &part)) return explain_part(text, one);
    if (count < 2) parts[count] = part;
    begin = end + 1;
  }
  if (count != 2) {
    return wrong(Rule::kCompoundArity, span,
                 fmt::format("expected 2 parts in {}, got {}", backticked(whole), count));
  }
  if (*compound_rule(parts[0], parts[1]) == Rule::kCompoundParts) {
    return wrong(Rule::kCompoundParts, span,
                 fmt::format("{} does not pair one F with one B or I", backticked(whole)),
                 std::string(kSeparately));
  }
  return wrong(Rule::kCompoundSameMicrobatch, span,
               fmt::format("the parts of {} have the same microbatch, so the backward depends on "
                           "the forward",
                           backticked(whole)),
               std::string(kSeparately));
}

}  // namespace

}  // namespace pipewright::ir
