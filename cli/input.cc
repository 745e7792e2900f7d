#include "cli/input.h"

#include <fmt/format.h>

#include <ostream>

#include "cli/files.h"
#include "ir/printable.h"
#include "ir/render.h"

namespace pipewright::cli {

void read_input(const Invocation& invocation, Console& console, Input* input) {
  input->source = read_source(invocation.arguments[0], console);
  const ir::ExpectedShape expected{invocation.number("--ranks"), invocation.number("--stages"),
                                   invocation.number("--microbatches")};
  input->parsed = ir::read_schedule(input->source, expected, &input->diagnostics);
}

void print_diagnostics(const Input& input, Console& console) {
  console.err << ir::render(input.diagnostics, &input.source,
                            {console.err_color, console.err_width});
  const size_t total = input.diagnostics.total();
  if (total == 0) return;
  const ir::Rule first = input.diagnostics.kept().front().rule;
  console.err << fmt::format("{} error{} in {}; `pipewright explain {}` tells more\n", total,
                             total == 1 ? "" : "s", ir::printable(input.source.name),
                             ir::code(first));
}

}  // namespace pipewright::cli
