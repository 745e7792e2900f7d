#include <fmt/format.h>

#include <ostream>
#include <string>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/commands.h"
#include "pipewright/cli/input.h"
#include "pipewright/ir/text/diagnostic_json.h"
#include "pipewright/schedule/verify/certificate.h"
#include "pipewright/schedule/verify/verify.h"

namespace pipewright::cli {
namespace {

std::string describe(const ir::AnySchedule& any) {
  const ir::Schedule& schedule = ir::schedule_of(any);
  size_t actions = 0;
  for (const ir::Row& row : schedule.rows) {
    for (const ir::Action& action : row) actions += !action.is_idle();
  }
  return fmt::format("{}, {}, {}", ir::name(ir::level_of(any)), shape_text(schedule),
                     count_text(actions, "action", "actions"));
}

std::string peak_json(std::string_view name, const schedule::Peak<int>& peak) {
  return fmt::format("\"{}\": {{\"peak\": {}, \"step\": {}}}", name, peak.amount,
                     peak.step ? std::to_string(*peak.step) : "null");
}

std::string certificate_json(const ir::Program& program, const schedule::VerifyOptions& options) {
  std::string ranks;
  for (const schedule::RankCertificate& rank : schedule::certify(program)) {
    ranks += fmt::format("{}\n      {{{}, {}, {}}}", ranks.empty() ? "" : ",",
                         peak_json("activations", rank.activations),
                         peak_json("receive_buffers", rank.receive_buffers),
                         peak_json("unsharded_stages", rank.unsharded_stages));
  }
  const std::string capacity = ir::to_string_capacity(options.capacity);
  return fmt::format(
      "{{\n    \"channels\": \"{}\",\n    \"capacity\": {},\n    \"ranks\": [{}\n    ]\n  }}",
      ir::name(options.channels), capacity == "inf" ? "\"inf\"" : capacity, ranks);
}

}  // namespace

int run_validate(const Invocation& invocation, Console& console) {
  Input input;
  read_input(invocation, console, &input);
  std::string what = input.schedule ? describe(*input.schedule) : "";
  std::vector<std::string> checked = {"text", "shape"};
  const auto order = [&] {
    return input.schedule ? std::get_if<ir::ComputeOrder>(&*input.schedule) : nullptr;
  };
  const bool was_order = order() != nullptr;
  if (was_order) {
    checked.insert(checked.end(), {"completeness", "order"});
    // Lowering starts with the same check.
    if (invocation.text("--level") == "compute_only" &&
        !schedule::verify(*order(), &input.diagnostics)) {
      place_diagnostics(&input);
      input.schedule.reset();
    }
  }
  // A compute order is lowered as well, unless --level says that the order alone is meant.
  lower_input(invocation, ir::Level::kComputeComms, nullptr, &input);
  schedule::VerifyOptions options;
  const auto* program = input.schedule ? std::get_if<ir::Program>(&*input.schedule) : nullptr;
  if (program != nullptr) {
    checked.emplace_back(was_order ? "lowering" : "completeness");
    checked.insert(checked.end(), {"data_flow", "residency", "reduction", "channels"});
    options = schedule::options_of(program->lowering);
    const bool good = schedule::verify(*program, options, &input.diagnostics);
    // Steps of a lowering are none of the file's.
    if (!was_order) place_diagnostics(&input);
    if (!good) program = nullptr;
  }
  const bool valid = !input.diagnostics.has_errors();
  if (invocation.has("--json")) {
    // `checked` grows as the verifier does: what is not in it was not looked at.
    console.out << fmt::format(
        "{{\n  \"version\": 1,\n  \"valid\": {},\n  \"checked\": [\"{}\"],\n  \"diagnostics\": "
        "{},\n  \"certificate\": {}\n}}\n",
        valid, fmt::join(checked, "\", \""), ir::diagnostics_json(input.diagnostics, 2),
        program != nullptr ? certificate_json(*program, options) : "null");
  } else {
    print_diagnostics(input, console);
    if (valid) {
      const std::string judged =
          program == nullptr
              ? ""
              : fmt::format(" ({}{})", was_order ? "lowered, " : "",
                            ir::describe_channels(options.channels, options.capacity));
      console.out << fmt::format("{}: valid{}: {}\n", input_name(input), judged, what);
    }
  }
  return valid ? kExitOk : kExitInvalid;
}

}  // namespace pipewright::cli
