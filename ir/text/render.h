#ifndef PIPEWRIGHT_IR_TEXT_RENDER_H_
#define PIPEWRIGHT_IR_TEXT_RENDER_H_

#include <cstddef>
#include <string>

#include "pipewright/ir/diagnostic.h"

// Diagnostics as people read them:
//
//   plan.csv:2:13: error[PW006]: nothing may follow `1F0` in its cell, found `xyz`
//   1UNSHARD,1F0xyz,1B0
//               ^^^
//   note: ...
//   help: ...
//
// The line is cut around the carets where it is longer than the width. This is the only code that
// draws carets.

namespace pipewright::ir {

struct RenderOptions {
  bool color = false;  // ANSI colours
  size_t width = 80;   // columns for the line of the file
};

// One text for all kept diagnostics, in their order, with a line that counts those that were not
// kept. `source` is the file that their places speak of, or null where there is none.
std::string render(const Diagnostics& diagnostics, const Source* source,
                   const RenderOptions& options);

// "plan.csv:2:45", "rank 1 step 4", or "plan.csv": as much as is known.
std::string render_place(const Place& place, const Source* source);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_RENDER_H_
