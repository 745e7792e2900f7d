#ifndef PIPEWRIGHT_IR_COUNTED_H_
#define PIPEWRIGHT_IR_COUNTED_H_

#include <concepts>
#include <string>
#include <string_view>

namespace pipewright::ir {

// "1 stage", "2 stages": a number with its noun, for messages. A pure function; any thread.
std::string counted(std::integral auto number, std::string_view one, std::string_view many) {
  return std::to_string(number).append(" ").append(number == 1 ? one : many);
}

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_COUNTED_H_
