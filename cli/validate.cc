#include <fmt/format.h>

#include <ostream>
#include <string>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/commands.h"
#include "pipewright/cli/input.h"
#include "pipewright/cli/receive_slots_json.h"
#include "pipewright/ir/text/diagnostic_json.h"
#include "pipewright/schedule/verify/verify.h"

namespace pipewright::cli {
namespace {

// "compute_only, 4 ranks, 8 stages, 8 microbatches, 125 actions": the source, before lowering.
std::string describe(const Input& input) {
  return fmt::format("{}, {}, {}", ir::name(*input.compiled.source_level),
                     shape_text(input.schedule()),
                     count_text(input.compiled.source_actions, "action", "actions"));
}

std::string peak_json(std::string_view name, const schedule::Peak<int>& peak) {
  return fmt::format("\"{}\": {{\"peak\": {}, \"step\": {}}}", name, peak.amount,
                     peak.step ? std::to_string(*peak.step) : "null");
}

std::string certificate_json(const ir::Program& program,
                             const std::vector<schedule::RankCertificate>& certificate) {
  std::string ranks;
  for (const schedule::RankCertificate& rank : certificate) {
    ranks += fmt::format("{}\n      {{{}, {}, {}, \"receive_slots\": {}}}",
                         ranks.empty() ? "" : ",", peak_json("activations", rank.activations),
                         peak_json("receive_buffers", rank.receive_buffers),
                         peak_json("unsharded_stages", rank.unsharded_stages),
                         receive_slots_json(rank.receive_slots));
  }
  const schedule::VerifyOptions options = schedule::options_of(program.lowering);
  const std::string capacity = ir::to_string_capacity(options.capacity);
  return fmt::format(
      "{{\n    \"channels\": \"{}\",\n    \"capacity\": {},\n    \"ranks\": [{}\n    ]\n  }}",
      ir::name(options.channels), capacity == "inf" ? "\"inf\"" : capacity, ranks);
}

// " (lowered, channels edge, capacity 0)": the channel model that a program was verified under.
std::string judged_text(const Input& input, const ir::Program& program) {
  const schedule::VerifyOptions options = schedule::options_of(program.lowering);
  const bool lowered = input.compiled.source_level == ir::Level::kComputeOnly;
  return fmt::format(" ({}{})", lowered ? "lowered, " : "",
                     ir::describe_channels(options.channels, options.capacity));
}

}  // namespace

int run_validate(const Invocation& invocation, Console& console) {
  const bool json = invocation.has("--json");
  // A compute order is also lowered, and the program verified, unless --level is compute_only.
  Input input = read_input(invocation, console);
  compile_input(invocation, {.of_file = ir::Level::kComputeComms},
                json ? schedule::Depth::kCertify : schedule::Depth::kVerify, &input, console);
  const schedule::CompileResult& compiled = input.compiled;
  const int code = compiled.ok() ? kExitOk : exit_code_of(compiled.diagnostics);
  if (code == kExitTrouble) require_ok(input, console);
  const auto* program = compiled.ok() ? std::get_if<ir::Program>(&input.any()) : nullptr;
  if (json) {
    // A check that is not in `checked` did not run. Later versions may add checks.
    console.out << fmt::format(
        "{{\n  \"version\": 1,\n  \"valid\": {},\n  \"checked\": [\"{}\"],\n  \"diagnostics\": "
        "{},\n  \"certificate\": {}\n}}\n",
        compiled.ok(), fmt::join(compiled.checked, "\", \""),
        ir::diagnostics_json(compiled.diagnostics, 2),
        program != nullptr ? certificate_json(*program, compiled.certificate) : "null");
    return code;
  }
  print_diagnostics(input, console);
  if (compiled.ok())
    console.out << fmt::format("{}: valid{}: {}\n", input.name,
                               program != nullptr ? judged_text(input, *program) : "",
                               describe(input));
  return code;
}

}  // namespace pipewright::cli
