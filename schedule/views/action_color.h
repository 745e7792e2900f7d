#ifndef PIPEWRIGHT_SCHEDULE_VIEWS_ACTION_COLOR_H_
#define PIPEWRIGHT_SCHEDULE_VIEWS_ACTION_COLOR_H_

#include <string_view>

#include "pipewright/ir/action_kind.h"

namespace pipewright::schedule {

// The colour of a kind of action in every text view, as an ANSI sequence's parameters: F blue, B
// green, I teal, W yellow, compounds magenta, communication dim, data parallelism in the terminal's
// own colour ("").
std::string_view action_color(ir::ActionKind kind);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VIEWS_ACTION_COLOR_H_
