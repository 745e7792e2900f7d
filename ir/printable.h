#ifndef PIPEWRIGHT_IR_PRINTABLE_H_
#define PIPEWRIGHT_IR_PRINTABLE_H_

#include <concepts>
#include <string>
#include <string_view>

namespace pipewright::ir {

// "1 stage", "2 stages": a number with its noun, for messages. A pure function; any thread.
std::string counted(std::integral auto number, std::string_view one, std::string_view many) {
  return std::to_string(number).append(" ").append(number == 1 ? one : many);
}

// Makes text from a user's file safe to print on a terminal and to put into JSON.

// Removes the first character of `text`, which must not be empty, and returns its printable form:
// the character itself, or an escape such as \x1B for a control character, a line or paragraph
// separator, a bidirectional control, a noncharacter such as U+FFFF, or a byte that is not valid
// UTF-8. Input files can therefore neither send escape sequences to a terminal, nor reorder or
// break a line, nor produce invalid JSON or XML.
std::string take_printable(std::string_view* text);

// The printable form of the whole text.
std::string printable(std::string_view text);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_PRINTABLE_H_
