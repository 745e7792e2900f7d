#ifndef PIPEWRIGHT_PYTHON_ERRORS_H_
#define PIPEWRIGHT_PYTHON_ERRORS_H_

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "pipewright/ir/diagnostic.h"

// Diagnostics as Python sees them: objects, and the exception that carries them.

namespace pipewright::python {

struct Diagnostic {
  std::string code;  // "PW042"
  std::string message;
  std::optional<int> rank, step;       // in the schedule, from 0
  std::optional<size_t> line, column;  // in the file, from 1
  std::vector<std::string> notes;
  std::string help;  // empty if there is none
  std::string text;  // all of it as the command prints it, with the line of the file and carets
};

// `source` is the file that places refer to; may be null.
std::vector<Diagnostic> diagnostics_of(const ir::Diagnostics& diagnostics,
                                       const ir::Source* source);

// Becomes pipewright.ScheduleError: a ValueError whose text is that of all diagnostics, with a list
// `diagnostics`.
struct ScheduleFailure : std::runtime_error {
  ScheduleFailure(const ir::Diagnostics& found, const ir::Source* source);
  std::vector<Diagnostic> diagnostics;
};

}  // namespace pipewright::python

#endif  // PIPEWRIGHT_PYTHON_ERRORS_H_
