#ifndef PIPEWRIGHT_CHECKPOINT_IN_BACKTICKS_H_
#define PIPEWRIGHT_CHECKPOINT_IN_BACKTICKS_H_

#include <string>
#include <string_view>

#include "pipewright/ir/printable.h"

namespace pipewright::checkpoint {

// A tensor's or a file's name in backticks, for messages. Names may be long, and their ends tell
// them apart, so unlike ir::backticked() this cuts only what no person would write.
inline std::string in_backticks(std::string_view name) {
  constexpr size_t kLongest = 500;
  std::string text = "`" + ir::printable(name.substr(0, kLongest));
  return text + (name.size() > kLongest ? "...`" : "`");
}

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_IN_BACKTICKS_H_
