#include <fmt/format.h>

#include <ostream>

#include "cli/command_table.h"
#include "cli/commands.h"
#include "cli/input.h"
#include "ir/diagnostic_json.h"
#include "ir/printable.h"

namespace pipewright::cli {
namespace {

// "4 ranks"
std::string count(size_t number, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", number, number == 1 ? one : many);
}

std::string describe(const ir::AnySchedule& any) {
  const ir::Schedule& schedule = ir::schedule_of(any);
  size_t actions = 0;
  for (const ir::Row& row : schedule.rows) {
    for (const ir::Action& action : row) actions += !action.is_idle();
  }
  const auto size = [](int number) { return static_cast<size_t>(number); };
  return fmt::format("{}, {}, {}, {}, {}", ir::name(ir::level_of(any)),
                     count(size(schedule.placement.num_ranks()), "rank", "ranks"),
                     count(size(schedule.placement.num_stages()), "stage", "stages"),
                     count(size(schedule.num_microbatches), "microbatch", "microbatches"),
                     count(actions, "action", "actions"));
}

}  // namespace

int run_validate(const Invocation& invocation, Console& console) {
  Input input;
  read_input(invocation, console, &input);
  // A compute order is lowered as well, unless --level says that the order alone is meant. What is
  // described is what was given.
  const std::string what = input.schedule && input.source ? describe(*input.schedule) : "";
  const bool was_order = input.schedule && ir::level_of(*input.schedule) == ir::Level::kComputeOnly;
  lower_input(invocation, ir::Level::kComputeComms, nullptr, &input);
  const bool valid = input.schedule.has_value();
  const bool lowered = was_order && invocation.text("--level") != "compute_only";
  if (invocation.has("--json")) {
    // `checked` grows as the verifier does: what is not in it was not looked at.
    console.out << fmt::format(
        "{{\n  \"version\": 1,\n  \"valid\": {},\n  \"checked\": [\"text\", \"shape\"{}],\n  "
        "\"diagnostics\": {}\n}}\n",
        valid, lowered ? ", \"lowering\"" : "", ir::diagnostics_json(input.diagnostics, 2));
  } else {
    print_diagnostics(input, console);
    if (valid) {
      console.out << fmt::format("{}: text and shape are valid{}: {}\n", input_name(input),
                                 lowered ? ", and it can be lowered" : "",
                                 what.empty() ? describe(*input.schedule) : what);
    }
  }
  return valid ? kExitOk : kExitInvalid;
}

}  // namespace pipewright::cli
