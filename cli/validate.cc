#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/files.h"
#include "pipewright/cli/input.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/cli/json.h"
#include "pipewright/cli/run.h"
#include "pipewright/ir/printable.h"
#include "pipewright/schedule/verify/verify.h"

namespace pipewright::cli {
namespace {

// "compute_only, 4 ranks, 8 stages, 8 microbatches, 125 actions": the source, before lowering.
std::string describe(const Run& run) {
  return fmt::format("{}, {}, {}", ir::name(*run.compiled().source_level),
                     shape_text(run.schedule()),
                     ir::counted(run.compiled().source_actions, "action", "actions"));
}

Json peak_json(const schedule::Peak<int>& peak) {
  return {{"peak", peak.amount}, {"step", or_null(peak.step)}};
}

Json certificate_json(const Run& run) {
  const schedule::VerifyOptions options = schedule::options_of(run.program()->lowering);
  return {
      {"channels", ir::name(options.channels)},
      {"capacity", capacity_json(options.capacity)},
      {"ranks", list_json(run.compiled().certificate, [](const schedule::RankCertificate& rank) {
         return Json{{"activations", peak_json(rank.activations)},
                     {"receive_buffers", peak_json(rank.receive_buffers)},
                     {"unsharded_stages", peak_json(rank.unsharded_stages)},
                     {"receive_slots", receive_slots_json(rank.receive_slots)},
                     {"communicators", rank.communicators}};
       })}};
}

// " (lowered, channels edge, capacity 0)": the channel model that a program was verified under.
std::string judged_text(const Run& run) {
  const schedule::VerifyOptions options = schedule::options_of(run.program()->lowering);
  const bool lowered = run.compiled().source_level == ir::Level::kComputeOnly;
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

// Adds what is known of a source. `valid` is null if the request is wrong, and nothing was checked.
void add_result(const Run& run, Json* json) {
  const schedule::CompileResult& compiled = run.compiled();
  const Json diagnostics = diagnostics_json(compiled.diagnostics);
  if (run.exit_code() == kExitTrouble) {
    (*json)["valid"] = nullptr;
    (*json)["diagnostics"] = diagnostics;
    return;
  }
  (*json)["valid"] = run.ok();
  // A check that is not in `checked` did not run. Later versions may add checks.
  (*json)["checked"] = compiled.checked;
  (*json)["diagnostics"] = diagnostics;
  const bool has_certificate = run.ok() && run.program() != nullptr;
  (*json)["certificate"] = has_certificate ? certificate_json(run) : Json(nullptr);
}

void print_text(const Run& run, Console& console) {
  run.print_diagnostics();
  if (!run.ok()) return;
  const ir::Program* program = run.program();
  console.out << fmt::format("{}: valid{}: {}{}\n", run.name(),
                             program != nullptr ? judged_text(run) : "", describe(run),
                             program != nullptr ? communicators_text(*program) : "");
}

// Reads and compiles one source. Throws FileError or UsageError if it cannot be checked.
Run check(const Invocation& invocation, const std::string& word, Console& console) {
  // A compute order is also lowered, and the program verified, unless --level is compute_only.
  return {
      invocation,
      console,
      read_input(invocation, word, console),
      {},
      {.level_of_file = ir::Level::kComputeComms,
       .depth = invocation.has("--json") ? schedule::Depth::kCertify : schedule::Depth::kVerify}};
}

}  // namespace

// Checks all sources. If there are several, also after one that cannot be read or compiled: its
// `valid` is null in the JSON list, with the `error` or the diagnostics that say why.
int run_validate(const Invocation& invocation, Console& console) {
  const bool as_json = invocation.has("--json"), is_one = invocation.arguments.size() == 1;
  int code = kExitOk;
  Json sources = Json::array();
  for (const std::string& word : invocation.arguments) {
    Json& source = sources.emplace_back();
    if (is_one) {
      source["version"] = 1;
    } else {
      source["source"] = ir::printable(word);
    }
    try {
      const Run run = check(invocation, word, console);
      if (is_one && run.exit_code() == kExitTrouble) run.require_ok();
      code = std::max(code, run.exit_code());
      add_result(run, &source);
      if (!as_json) print_text(run, console);
    } catch (const FileError& error) {
      if (is_one) throw;
      print_trouble(error.what(), console);
      source["valid"] = nullptr;
      source["error"] = ir::printable(error.what());
      code = kExitTrouble;
    }
  }
  if (as_json)
    print_json(is_one ? sources[0]
                      : Json{{"version", 1}, {"valid", code == kExitOk}, {"sources", sources}},
               console.out);
  return code;
}

}  // namespace pipewright::cli
