#include "cli/command_table.h"
#include "cli/commands.h"
#include "cli/files.h"
#include "cli/input.h"
#include "schedule/table.h"

namespace pipewright::cli {

int run_print(const Invocation& invocation, Console& console) {
  Input input;
  read_input(invocation, console, &input);
  print_diagnostics(input, console);
  if (!input.parsed) return kExitInvalid;

  const std::string format = invocation.text("--format").value_or("table");
  const std::string path = invocation.text("--output").value_or("");
  write_output(path, console, [&](std::ostream& out) {
    if (format == "table") {
      const bool to_file = !path.empty() && path != "-";
      const schedule::TableOptions options{to_file ? 0 : console.out_width,
                                           !to_file && console.out_color};
      schedule::print_table(ir::schedule_of(input.parsed->schedule), options, out);
      return;
    }
    for (const ir::FormatInfo& row : ir::formats()) {
      if (format == row.name) row.print(input.parsed->schedule, out);
    }
  });
  return kExitOk;
}

}  // namespace pipewright::cli
