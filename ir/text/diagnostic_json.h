#ifndef PIPEWRIGHT_IR_TEXT_DIAGNOSTIC_JSON_H_
#define PIPEWRIGHT_IR_TEXT_DIAGNOSTIC_JSON_H_

#include <string>
#include <string_view>

#include "pipewright/ir/diagnostic.h"

namespace pipewright::ir {

// The kept diagnostics as a JSON array, for other programs (`validate --json`). A field that does
// not apply is null. Later versions only add keys:
//
//   [{"code": "PW020", "severity": "error", "message": "...",
//     "rank": 1, "step": 4, "line": 2, "column": 45,
//     "notes": [{"message": "...", "rank": 0, "step": 3, "line": 1, "column": 9}], "help": null}]
//
// Each line after the first is indented by `indent` spaces. A pure function; any thread.
std::string diagnostics_json(const Diagnostics& diagnostics, int indent);

// A text as a JSON string, quotes included, with what is not printable escaped as on a terminal
// (pipewright/ir/printable.h). A pure function; any thread.
std::string quoted_json(std::string_view text);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_DIAGNOSTIC_JSON_H_
