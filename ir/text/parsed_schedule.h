#ifndef PIPEWRIGHT_IR_TEXT_PARSED_SCHEDULE_H_
#define PIPEWRIGHT_IR_TEXT_PARSED_SCHEDULE_H_

#include <optional>

#include "pipewright/ir/recording.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/text/cell_index.h"

namespace pipewright::ir {

// The result of every parser: a schedule, the places of its cells in the Source, which must outlive
// this, and a recording if the file has one.
struct ParsedSchedule {
  AnySchedule schedule;
  CellIndex cells = {};
  std::optional<Recording> recording = {};
};

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_PARSED_SCHEDULE_H_
