#ifndef PIPEWRIGHT_IR_TEXT_ACTION_TEXT_H_
#define PIPEWRIGHT_IR_TEXT_ACTION_TEXT_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "pipewright/ir/action.h"
#include "pipewright/ir/rules.h"

// One action as text, as PyTorch writes it: "2F0", "1UNSHARD", "(0F3;3B1)OVERLAP_F_B". The grammar
// is in FORMAT.md.

namespace pipewright::ir {

// Why a text is no action.
struct ActionTextError {
  Rule rule;
  size_t offset;  // of the part of the text that is wrong
  size_t length;
  std::string message;
  std::string help;
};

// Reads the whole of `text`, blanks around it aside; blanks alone are an idle slot. On an error
// gives what is wrong and leaves `action` as it was. Any thread.
std::optional<ActionTextError> parse_action(std::string_view text, Action* action);

// The fast half of parse_action: reads a plain action (no blanks, no compound) that starts at `at`,
// and gives the offset behind it. npos where there is none, which says nothing yet of what
// parse_action makes of the text.
size_t take_plain_action(std::string_view text, size_t at, Action* action);

// Appends the action's text; nothing for an idle slot. parse_action reads it back.
void append_action(const Action& action, std::string* text);
std::string to_string(const Action& action);

// The rule that a compound of these two parts breaks, if any.
std::optional<Rule> compound_rule(ActionPart first, ActionPart second);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_ACTION_TEXT_H_
