#ifndef PIPEWRIGHT_IR_TEXT_SCHEDULE_JSON_VALUES_H_
#define PIPEWRIGHT_IR_TEXT_SCHEDULE_JSON_VALUES_H_

#include <string_view>

#include "pipewright/ir/text/json_scanner.h"

// What the reader and the writer of schedules as JSON share.

namespace pipewright::ir {

inline constexpr std::string_view kJsonVersion = "1";

// Whether a key whose `values` column (HeaderKey, LoweringPolicy) reads "K", "K|...", "N|inf",
// "true|false" or words can have a JSON value of this kind.
inline bool is_kind(std::string_view values, JsonKind kind) {
  if (values.size() == 1) return kind == JsonKind::kNumber;
  if (values == "N|inf" || values.starts_with("K|"))
    return kind == JsonKind::kNumber || kind == JsonKind::kString;
  if (values == "true|false") return kind == JsonKind::kBoolean;
  return kind == JsonKind::kString;
}

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_SCHEDULE_JSON_VALUES_H_
