#ifndef PIPEWRIGHT_IR_TEXT_CSV_H_
#define PIPEWRIGHT_IR_TEXT_CSV_H_

#include <iosfwd>
#include <optional>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/text/parsed_schedule.h"

// PyTorch's CSV, as _PipelineScheduleRuntime._load_csv reads it and _dump_csv writes it:
//
//   0F0,0F1,,0B0,,0B1          one row a rank, one cell a step, an empty cell for an idle slot
//   ,1F0,1B0,1F1,1B1
//
// It has no header: its level and shape are found from its rows. The grammar is in FORMAT.md.

namespace pipewright::ir {

// Reads all of it, or gives none and adds every error that there is. Takes 16 bytes a cell beside
// the text.
std::optional<ParsedSchedule> parse_csv(const Source& source, Diagnostics* diagnostics);

// Writes the rows, with CRLF as Python's csv module has it. parse_csv reads back the same rows.
void print_csv(const Rows& rows, std::ostream& out);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_CSV_H_
