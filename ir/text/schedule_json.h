#ifndef PIPEWRIGHT_IR_TEXT_SCHEDULE_JSON_H_
#define PIPEWRIGHT_IR_TEXT_SCHEDULE_JSON_H_

#include <iosfwd>
#include <optional>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/text/parsed_schedule.h"

// A schedule as JSON, for other programs:
//
//   {"version": 1, "name": "GPipe", "level": "compute_only",
//    "ranks": 2, "stages": 2, "microbatches": 1, "placement": "loop",
//    "rows": [["0F0", null, "0B0"], [null, "1F0", "1B0"]]}
//
// A placement that is no pattern is an array of the stages' ranks; "lowering" holds the policies
// that are known. The format only grows; FORMAT.md has all of it.

namespace pipewright::ir {

// Reads all of it, or gives none and adds the errors: all that there are, or up to the first that
// breaks the syntax.
std::optional<ParsedSchedule> parse_json(const Source& source, Diagnostics* diagnostics);

// One line a row. parse_json reads back the same schedule.
void print_json(const AnySchedule& schedule, std::ostream& out);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_SCHEDULE_JSON_H_
