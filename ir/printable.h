#ifndef PIPEWRIGHT_IR_PRINTABLE_H_
#define PIPEWRIGHT_IR_PRINTABLE_H_

#include <string>
#include <string_view>

// Text from a user's file on its way to a terminal.

namespace pipewright::ir {

// Takes one character off the front of `text`, which is not empty, and gives what to show for it:
// itself, or \x1B for a control character or a byte that is not UTF-8, so that a file can neither
// steer a terminal nor break JSON.
std::string take_printable(std::string_view* text);

// All of it.
std::string printable(std::string_view text);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_PRINTABLE_H_
