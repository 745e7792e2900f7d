#ifndef PIPEWRIGHT_IR_TEXT_RENDER_H_
#define PIPEWRIGHT_IR_TEXT_RENDER_H_

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

#include "pipewright/ir/diagnostic.h"

// Renders diagnostics for people:
//
//   plan.csv:2:13: error[PW006]: expected the end of the cell after `1F0`, got `xyz`
//   1UNSHARD,1F0xyz,1B0
//               ^^^
//   note: ...
//   help: ...
//
// A line that is wider than the terminal is cut around the carets. This is the only code that draws
// carets. Pure functions; any thread.

namespace pipewright::ir {

struct RenderOptions {
  bool color = false;  // ANSI colours
  size_t width = 80;   // in columns, for the excerpt of the file
  size_t max_errors = std::numeric_limits<size_t>::max();
};

// The text of the kept diagnostics in order, up to `max_errors`, and a final line with the number
// of those that are not shown. `source` is the file that their places refer to, or null if there is
// none.
std::string render(const Diagnostics& diagnostics, const Source* source,
                   const RenderOptions& options);

// "plan.csv:2:45", "rank 1 step 4", or "plan.csv": as much as is known.
std::string render_place(const Place& place, const Source* source);

// The kept diagnostics as a JSON array, for other programs (`validate --json`). A field that does
// not apply is null. Later versions only add keys:
//
//   [{"code": "PW020", "severity": "error", "message": "...",
//     "rank": 1, "step": 4, "line": 2, "column": 45,
//     "notes": [{"message": "...", "rank": 0, "step": 3, "line": 1, "column": 9}], "help": null}]
//
// A pure function; any thread.
std::string diagnostics_json(const Diagnostics& diagnostics);

// A text as a JSON string, quotes included, with what is not printable escaped as on a terminal
// (pipewright/ir/printable.h). A pure function; any thread.
std::string quoted_json(std::string_view text);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_RENDER_H_
