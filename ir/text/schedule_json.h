#ifndef PIPEWRIGHT_IR_TEXT_SCHEDULE_JSON_H_
#define PIPEWRIGHT_IR_TEXT_SCHEDULE_JSON_H_

#include <iosfwd>
#include <optional>
#include <string_view>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/text/shape.h"
#include "pipewright/ir/timeline.h"

// A schedule as JSON, for other programs:
//
//   {"version": 1, "name": "GPipe", "level": "compute_only",
//    "ranks": 2, "stages": 2, "microbatches": 1, "placement": "loop",
//    "rows": [["0F0", null, "0B0"], [null, "1F0", "1B0"]]}
//
// A placement other than "loop" or "v" is an array with the rank of each stage. "lowering" is an
// object with the known policies, and "recording" one with the times of a measured run. Later
// versions only add keys. FORMAT.md is the specification.

namespace pipewright::ir {

// Parses the whole text. Returns nullopt and adds errors if it is not valid: all errors, or those
// up to the first syntax error or unknown version.
std::optional<ParsedSchedule> parse_json(const Source& source, Diagnostics* diagnostics);

// Writes one line per row. parse_json reads back the same schedule.
void print_json(const AnySchedule& schedule, std::ostream& out);
// The same with a recording of the schedule.
//
//   ir::print_json(program, ir::recording_of_seconds(executor.recording()), out);
void print_json(const AnySchedule& schedule, const Recording& recording, std::ostream& out);

// Whether the text is a JSON object with the key `rows`, and so a schedule, valid or not.
bool is_schedule_json(const Source& source);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_SCHEDULE_JSON_H_
