#include <fmt/format.h>

#include <ostream>
#include <string>
#include <string_view>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/commands.h"
#include "pipewright/ir/check.h"
#include "pipewright/ir/text/read.h"
#include "pipewright/schedules/catalogue.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::cli {
namespace {

// The path of a schedule's ready-made .plan file; empty if it has none.
std::string_view ready_file_of(const schedules::ScheduleSpec& spec) {
  for (const schedules::ReadyFile& file : schedules::ready_files()) {
    ir::Diagnostics diagnostics;
    const ir::Source source{std::string(file.path), std::string(file.text)};
    const auto parsed = ir::read_schedule(source, {}, &diagnostics);
    PW_CHECK(parsed, "a ready file is valid: " + source.name);
    if (ir::schedule_of(parsed->schedule).name == spec.name) return file.path;
  }
  return "";
}

}  // namespace

int run_list(const Invocation&, Console& console) {
  console.out
      << "P ranks, S stages, V stages per rank, M microbatches, r a rank. F, B, I, W: times "
         "of one stage's forward,\n"
         "backward and its two halves. Bubble: idle time per rank and step. Memory: peak of "
         "live activations on\n"
         "rank r, in microbatches of one stage.\n";
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    console.out << '\n' << spec->name;
    if (!spec->aliases.empty())
      console.out << fmt::format("  (also {})", fmt::join(spec->aliases, ", "));
    console.out << '\n';
    const auto line = [&](std::string_view what, std::string_view text) {
      if (!text.empty()) console.out << fmt::format("  {:<11} {}\n", what, text);
    };
    const int per_rank = spec->default_stages_per_rank;
    line("placement", fmt::format("{}, {} stage{} per rank by default",
                                  spec->pattern == schedules::Pattern::kLoop ? "loop" : "v",
                                  per_rank, per_rank == 1 ? "" : "s"));
    line("backward", spec->splits_backward ? "split into I and W" : "whole");
    for (const schedules::Constraint& constraint : spec->constraints)
      line("requires", fmt::format("{}: {}", constraint.rule, constraint.reason));
    for (const schedules::ShapeOption& option : spec->options)
      line("option", fmt::format("--{}: {}", option.name, option.meaning));
    line("bubble", spec->bubble);
    line("memory", spec->memory);
    line("source", spec->source);
    line("ready file", ready_file_of(*spec));
  }
  return kExitOk;
}

}  // namespace pipewright::cli
