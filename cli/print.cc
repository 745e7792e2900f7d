#include <fmt/format.h>

#include <functional>
#include <ostream>

#include "cli/command_table.h"
#include "cli/commands.h"
#include "cli/files.h"
#include "cli/input.h"
#include "ir/read.h"
#include "schedule/table.h"

namespace pipewright::cli {
namespace {

void print_as(const std::string& format, const ir::AnySchedule& schedule,
              const schedule::TableOptions& table, std::ostream& out) {
  if (format == "table") {
    schedule::print_table(ir::schedule_of(schedule), table, out);
    return;
  }
  for (const ir::FormatInfo& row : ir::formats()) {
    if (format == row.name) row.print(schedule, out);
  }
}

}  // namespace

int run_print(const Invocation& invocation, Console& console) {
  const std::string format = invocation.text("--format").value_or("table");
  // What a pass gave goes to stderr: stdout holds the result alone.
  const std::optional<std::string> watched = invocation.text("--print-after");
  bool seen = false;
  const auto observer = [&](std::string_view pass, const ir::AnySchedule& schedule) {
    if (pass != watched) return;
    seen = true;
    console.err << fmt::format("after {}:\n", pass);
    print_as(format, schedule, {console.err_width, console.err_color}, console.err);
  };

  Input input;
  read_input(invocation, console, &input);
  const bool is_file_at_its_level = input.source && input.schedule;
  lower_input(invocation,
              is_file_at_its_level ? ir::level_of(*input.schedule) : ir::Level::kComputeComms,
              observer, &input);
  print_diagnostics(input, console);
  if (!input.schedule) return kExitInvalid;
  if (watched && !seen) console.err << fmt::format("note: the pass {} did not run\n", *watched);

  const std::string path = invocation.text("--output").value_or("");
  const bool to_stdout = path.empty() || path == "-";
  const schedule::TableOptions table{to_stdout ? console.out_width : 0,
                                     to_stdout && console.out_color};
  write_output(path, console,
               [&](std::ostream& out) { print_as(format, *input.schedule, table, out); });
  return kExitOk;
}

}  // namespace pipewright::cli
