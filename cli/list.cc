#include <fmt/format.h>

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/cli/json.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/spelling.h"
#include "pipewright/schedules/catalogue.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::cli {
namespace {

using schedules::ScheduleSpec;

std::string_view placement_of(const ScheduleSpec& spec) {
  switch (spec.pattern) {
    case schedules::Pattern::kLoop:
      return "loop";
    case schedules::Pattern::kV:
      return "v";
    case schedules::Pattern::kBothWays:
      return "both ways, with two replicas";
  }
  return "";
}

// "ready:zb_h1", or empty.
std::string ready_file_of(const ScheduleSpec& spec) {
  const schedules::ReadyFile* file = schedules::find_ready_file(spec.name);
  return file == nullptr ? "" : fmt::format("ready:{}", file->name);
}

void print_text(const ScheduleSpec& spec, std::ostream& out) {
  out << '\n' << spec.name;
  if (!spec.aliases.empty()) out << fmt::format("  (also {})", fmt::join(spec.aliases, ", "));
  out << '\n';
  const auto line = [&](std::string_view what, std::string_view text) {
    if (!text.empty()) out << fmt::format("  {:<11} {}\n", what, text);
  };
  line("placement", fmt::format("{}, {} per rank by default", placement_of(spec),
                                ir::counted(spec.default_stages_per_rank, "stage", "stages")));
  line("backward", spec.splits_backward ? "split into I and W" : "whole");
  for (const schedules::Constraint& constraint : spec.constraints)
    line("requires", fmt::format("{}: {}", constraint.rule, constraint.reason));
  for (const schedules::ShapeOption& option : spec.options)
    line("option", fmt::format("--{}: {}", option.name, option.meaning));
  line("bubble", spec.bubble_where.empty()
                     ? std::string(spec.bubble)
                     : fmt::format("{} where {}", spec.bubble, spec.bubble_where));
  line("", spec.bubble_note);
  line("memory", spec.memory);
  line("source", spec.source);
  line("ready file", ready_file_of(spec));
}

Json spec_json(const ScheduleSpec* spec) {
  const auto constraint_json = [](const schedules::Constraint& one) {
    return Json{{"rule", one.rule}, {"reason", one.reason}};
  };
  const auto option_json = [](const schedules::ShapeOption& one) {
    return Json{{"name", one.name}, {"meaning", one.meaning}};
  };
  return {{"name", spec->name},
          {"aliases", spec->aliases},
          {"placement", placement_of(*spec)},
          {"stages_per_rank", spec->default_stages_per_rank},
          {"backward", spec->splits_backward ? "split" : "whole"},
          {"constraints", list_json(spec->constraints, constraint_json)},
          {"options", list_json(spec->options, option_json)},
          {"bubble", spec->bubble},
          {"bubble_where", or_null(spec->bubble_where)},
          {"bubble_note", or_null(spec->bubble_note)},
          {"memory", spec->memory},
          {"source", spec->source},
          {"ready_file", or_null(ready_file_of(*spec))}};
}

std::vector<const ScheduleSpec*> asked_schedules(const Invocation& invocation) {
  const auto all = schedules::all_schedules();
  if (invocation.arguments.empty()) return {all.begin(), all.end()};
  const std::string& name = invocation.arguments[0];
  if (const ScheduleSpec* spec = schedules::find_schedule(name)) return {spec};
  const std::string hint = ir::did_you_mean(name, schedules::schedule_names());
  throw UsageError(fmt::format("there is no schedule {}; {}", ir::backticked(name),
                               hint.empty() ? "`pipewright list` shows all of them" : hint));
}

}  // namespace

int run_list(const Invocation& invocation, Console& console) {
  const std::vector<const ScheduleSpec*> specs = asked_schedules(invocation);
  if (invocation.has("--json")) {
    print_json({{"version", 1}, {"schedules", list_json(specs, spec_json)}}, console.out);
    return kExitOk;
  }
  console.out
      << "P ranks, S stages, V stages per rank, M microbatches of K slices that take the same "
         "time, r a rank. F, B, I, W:\n"
         "times of one stage's forward, backward and its two halves, for a microbatch; F&B of "
         "a forward and a backward\n"
         "that overlap. Bubble: idle time per rank and step, with ideal transfers that take no "
         "time. Memory: peak of\n"
         "live activations on rank r, in microbatches of one stage.\n";
  for (const ScheduleSpec* spec : specs) print_text(*spec, console.out);
  return kExitOk;
}

}  // namespace pipewright::cli
