#ifndef PIPEWRIGHT_IR_TEXT_PARSED_SCHEDULE_H_
#define PIPEWRIGHT_IR_TEXT_PARSED_SCHEDULE_H_

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/text/cell_index.h"

namespace pipewright::ir {

// The result of every parser: a schedule, and the places of its cells in the Source, which must
// outlive this.
struct ParsedSchedule {
  AnySchedule schedule;
  CellIndex cells;
};

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_PARSED_SCHEDULE_H_
