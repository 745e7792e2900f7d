#ifndef PIPEWRIGHT_IR_TEXT_EXPLAIN_ACTION_TEXT_H_
#define PIPEWRIGHT_IR_TEXT_EXPLAIN_ACTION_TEXT_H_

#include <string_view>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/ir/text/scan_action.h"

// Finds out why a text is not an action: the rule that it violates, the bytes that are wrong, and
// how to fix them. parse_action calls this once its fast path has failed, so speed does not matter
// here. Pure functions; any thread.

namespace pipewright::ir {

// For a `span` that is not a plain action: scan_whole_part returned false. Not empty.
ActionTextError explain_part(std::string_view text, TextSpan span);

// For a `span` that starts with a parenthesis and is not a valid compound.
ActionTextError explain_compound(std::string_view text, TextSpan span);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_EXPLAIN_ACTION_TEXT_H_
