#ifndef PIPEWRIGHT_IR_TEXT_ACTION_TEXT_H_
#define PIPEWRIGHT_IR_TEXT_ACTION_TEXT_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "pipewright/ir/action.h"
#include "pipewright/ir/diagnostic.h"

// The text form of an action, which is PyTorch's: "2F0", "1UNSHARD", "(0F3;3B1)OVERLAP_F_B". The
// grammar is in FORMAT.md. Stricter than PyTorch's _Action.from_str, which accepts texts such as
// "1F0xyz" and drops a part of them. All functions are pure; any thread.

namespace pipewright::ir {

// Why a text is not an action.
struct ActionTextError {
  Rule rule;
  size_t offset;  // of the wrong bytes, in the text
  size_t length;
  std::string message;
  std::string help;
};

// Parses the whole of `text`; blanks around the action are ignored, and blanks alone are an idle
// slot. On an error returns what is wrong and leaves `action` unchanged.
std::optional<ActionTextError> parse_action(std::string_view text, Action* action);

// Adds an error of parse_action to `diagnostics`. `place` is the place of its wrong bytes.
void report(ActionTextError error, const Place& place, Diagnostics* diagnostics);

// The fast path of parse_action: parses a plain action (not a compound, no blanks) that starts at
// offset `at` and returns the offset after it. Returns npos if there is none; parse_action may
// still accept the text.
size_t take_plain_action(std::string_view text, size_t at, Action* action);

// Appends the text of an action, which parse_action reads back. Appends nothing for an idle slot.
void append_action(const Action& action, std::string* text);
std::string to_string(const Action& action);

// The rule that a compound of these two parts violates, or nullopt.
std::optional<Rule> compound_rule(ActionPart first, ActionPart second);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_ACTION_TEXT_H_
