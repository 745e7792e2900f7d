#include "pipewright/python/errors.h"

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/text/render.h"

namespace pipewright::python {

std::vector<Diagnostic> diagnostics_of(const ir::Diagnostics& diagnostics,
                                       const ir::Source* source) {
  std::vector<Diagnostic> all;
  for (const ir::Diagnostic& one : diagnostics.kept()) {
    Diagnostic& next = all.emplace_back();
    next.code = ir::code(one.rule);
    next.message = one.message;
    next.rank = one.place.rank;
    next.step = one.place.step;
    if (one.place.offset) {
      next.line = one.place.line;
      next.column = one.place.column;
    }
    for (const ir::Note& note : one.notes) next.notes.push_back(note.message);
    next.help = one.help;
    ir::Diagnostics alone;
    alone.error(one.rule, one.message, one.place) = one;
    next.text = ir::render(alone, source, {});
  }
  return all;
}

ScheduleFailure::ScheduleFailure(const ir::Diagnostics& found, const ir::Source* source)
    : std::runtime_error(ir::render(found, source, {})),
      diagnostics(diagnostics_of(found, source)) {}

}  // namespace pipewright::python
