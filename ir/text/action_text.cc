#include "pipewright/ir/text/action_text.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "pipewright/ir/text/explain_action_text.h"
#include "pipewright/ir/text/scan_action.h"

namespace pipewright::ir {
namespace {

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

}  // namespace pipewright::ir
