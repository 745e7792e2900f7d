#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/files.h"
#include "pipewright/cli/input.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/cli/receive_slots_json.h"
#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/render.h"
#include "pipewright/schedule/verify/verify.h"

namespace pipewright::cli {
namespace {

// "compute_only, 4 ranks, 8 stages, 8 microbatches, 125 actions": the source, before lowering.
std::string describe(const Input& input) {
  return fmt::format("{}, {}, {}", ir::name(*input.compiled.source_level),
                     shape_text(input.schedule()),
                     ir::counted(input.compiled.source_actions, "action", "actions"));
}

std::string peak_json(std::string_view name, const schedule::Peak<int>& peak) {
  return fmt::format("\"{}\": {{\"peak\": {}, \"step\": {}}}", name, peak.amount,
                     peak.step ? std::to_string(*peak.step) : "null");
}

std::string certificate_json(const ir::Program& program,
                             const std::vector<schedule::RankCertificate>& certificate) {
  std::string ranks;
  for (const schedule::RankCertificate& rank : certificate) {
    ranks += fmt::format("{}\n      {{{}, {}, {}, \"receive_slots\": {}, \"communicators\": {}}}",
                         ranks.empty() ? "" : ",", peak_json("activations", rank.activations),
                         peak_json("receive_buffers", rank.receive_buffers),
                         peak_json("unsharded_stages", rank.unsharded_stages),
                         receive_slots_json(rank.receive_slots), rank.communicators);
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

// ", 2 to 4 communicators per rank".
std::string communicators_text(const ir::Program& program) {
  const std::vector<int> counts = schedule::communicators_per_rank(program);
  const auto [least, most] = std::ranges::minmax(counts);
  return fmt::format(", {}{} per rank", least == most ? "" : fmt::format("{} to ", least),
                     ir::counted(most, "communicator", "communicators"));
}

// The members of a JSON object, each on a line that begins with two spaces.
std::string result_json(const Input& input) {
  const schedule::CompileResult& compiled = input.compiled;
  const auto* program = compiled.ok() ? std::get_if<ir::Program>(&input.any()) : nullptr;
  // A check that is not in `checked` did not run. Later versions may add checks.
  return fmt::format(
      "  \"valid\": {},\n  \"checked\": [\"{}\"],\n  \"diagnostics\": {},\n  \"certificate\": {}",
      compiled.ok(), fmt::join(compiled.checked, "\", \""),
      ir::diagnostics_json(compiled.diagnostics, 2),
      program != nullptr ? certificate_json(*program, compiled.certificate) : "null");
}

void print_text(const Input& input, Console& console) {
  print_diagnostics(input, console);
  if (!input.compiled.ok()) return;
  const auto* program = std::get_if<ir::Program>(&input.any());
  console.out << fmt::format(
      "{}: valid{}: {}{}\n", input.name, program != nullptr ? judged_text(input, *program) : "",
      describe(input), program != nullptr ? communicators_text(*program) : "");
}

// Reads and compiles one source. Throws FileError or UsageError if it cannot be checked.
Input check(const Invocation& invocation, Console& console, size_t argument) {
  // A compute order is also lowered, and the program verified, unless --level is compute_only.
  Input input = read_input(invocation, console, argument);
  compile_input(invocation, {.of_file = ir::Level::kComputeComms},
                invocation.has("--json") ? schedule::Depth::kCertify : schedule::Depth::kVerify,
                &input, console);
  return input;
}

std::string indented(std::string_view text, size_t indent) {
  std::string result(indent, ' ');
  for (const char letter : text) {
    result += letter;
    if (letter == '\n') result.append(indent, ' ');
  }
  return result;
}

// kExitTrouble if the request is wrong, and nothing was checked.
int exit_code(const Input& input) {
  return input.compiled.ok() ? kExitOk : exit_code_of(input.compiled.diagnostics);
}

int validate_one(const Invocation& invocation, Console& console) {
  const Input input = check(invocation, console, 0);
  if (exit_code(input) == kExitTrouble) require_ok(input, console);
  if (invocation.has("--json")) {
    console.out << fmt::format("{{\n  \"version\": 1,\n{}\n}}\n", result_json(input));
  } else {
    print_text(input, console);
  }
  return exit_code(input);
}

// Checks all sources, also after one that cannot be read or compiled: its `valid` is null in the
// JSON list, with the `error` or the diagnostics that say why.
int validate_several(const Invocation& invocation, Console& console) {
  int code = kExitOk;
  std::string sources;
  for (size_t argument = 0; argument < invocation.arguments.size(); ++argument) {
    std::string result;
    try {
      const Input input = check(invocation, console, argument);
      code = std::max(code, exit_code(input));
      if (!invocation.has("--json")) {
        print_text(input, console);
      } else if (exit_code(input) == kExitTrouble) {
        result = fmt::format("  \"valid\": null,\n  \"diagnostics\": {}",
                             ir::diagnostics_json(input.compiled.diagnostics, 2));
      } else {
        result = result_json(input);
      }
    } catch (const FileError& error) {
      print_trouble(error.what(), console);
      result = fmt::format("  \"valid\": null,\n  \"error\": {}", ir::quoted_json(error.what()));
      code = kExitTrouble;
    }
    sources +=
        fmt::format("{}\n    {{\n      \"source\": {},\n{}\n    }}", argument == 0 ? "" : ",",
                    ir::quoted_json(invocation.arguments[argument]), indented(result, 4));
  }
  if (invocation.has("--json"))
    console.out << fmt::format(
        "{{\n  \"version\": 1,\n  \"valid\": {},\n  \"sources\": [{}\n  ]\n}}\n", code == kExitOk,
        sources);
  return code;
}

}  // namespace

int run_validate(const Invocation& invocation, Console& console) {
  return invocation.arguments.size() == 1 ? validate_one(invocation, console)
                                          : validate_several(invocation, console);
}

}  // namespace pipewright::cli
