#ifndef PIPEWRIGHT_IR_TEXT_CSV_H_
#define PIPEWRIGHT_IR_TEXT_CSV_H_

#include <iosfwd>
#include <optional>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/text/shape.h"

// PyTorch's CSV format for schedules, as read by _PipelineScheduleRuntime._load_csv and written by
// _dump_csv:
//
//   0F0,0F1,,0B0,,0B1          one row per rank, one cell per step; an empty cell is an idle slot
//   ,1F0,1B0,1F1,1B1
//
// It has no header: level and shape are inferred from the rows, but for what only a caller can say:
// into how many slices microbatches are cut, and that there are two replicas of the model. The
// grammar is in FORMAT.md.

namespace pipewright::ir {

// Parses the whole text. Takes the slices and replicas of `expected`, by default one, and checks
// nothing else of it. Returns nullopt and adds all errors if the text is not valid. Allocates 16
// bytes per cell in addition to the text.
std::optional<ParsedSchedule> parse_csv(const Source& source, Diagnostics* diagnostics,
                                        const ExpectedShape& expected = {});

// Writes the rows, with CRLF line ends like Python's csv module. parse_csv reads back the same
// rows.
void print_csv(const Rows& rows, std::ostream& out);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_CSV_H_
