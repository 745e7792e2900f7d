#include <fmt/format.h>

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/render.h"
#include "pipewright/ir/text/spelling.h"
#include "pipewright/schedules/catalogue.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::cli {
namespace {

using schedules::ScheduleSpec;

std::string_view placement_of(const ScheduleSpec& spec) {
  return spec.pattern == schedules::Pattern::kLoop ? "loop" : "v";
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

std::string or_null(std::string_view text) { return text.empty() ? "null" : ir::quoted_json(text); }

// "[...]" with the text of each item.
template <typename Items, typename Text>
std::string list_json(const Items& items, const Text& text_of) {
  std::vector<std::string> texts;
  for (const auto& item : items) texts.push_back(text_of(item));
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

std::string spec_json(const ScheduleSpec& spec) {
  const std::string constraints = list_json(spec.constraints, [](const auto& one) {
    return fmt::format("{{\"rule\": {}, \"reason\": {}}}", ir::quoted_json(one.rule),
                       ir::quoted_json(one.reason));
  });
  const std::string options = list_json(spec.options, [](const auto& one) {
    return fmt::format("{{\"name\": {}, \"meaning\": {}}}", ir::quoted_json(one.name),
                       ir::quoted_json(one.meaning));
  });
  return fmt::format(
      "    {{\n      \"name\": {},\n      \"aliases\": {},\n      \"placement\": \"{}\",\n      "
      "\"stages_per_rank\": {},\n      \"backward\": \"{}\",\n      \"constraints\": {},\n      "
      "\"options\": {},\n      \"bubble\": {},\n      \"bubble_where\": {},\n      "
      "\"bubble_note\": {},\n      \"memory\": {},\n      \"source\": {},\n     "
      " "
      "\"ready_file\": {}\n    }}",
      ir::quoted_json(spec.name), list_json(spec.aliases, ir::quoted_json), placement_of(spec),
      spec.default_stages_per_rank, spec.splits_backward ? "split" : "whole", constraints, options,
      ir::quoted_json(spec.bubble), or_null(spec.bubble_where), or_null(spec.bubble_note),
      ir::quoted_json(spec.memory), ir::quoted_json(spec.source), or_null(ready_file_of(spec)));
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
    std::vector<std::string> texts;
    for (const ScheduleSpec* spec : specs) texts.push_back(spec_json(*spec));
    console.out << fmt::format("{{\n  \"version\": 1,\n  \"schedules\": [\n{}\n  ]\n}}\n",
                               fmt::join(texts, ",\n"));
    return kExitOk;
  }
  console.out
      << "P ranks, S stages, V stages per rank, M microbatches, r a rank. F, B, I, W: times "
         "of one stage's forward,\n"
         "backward and its two halves; F&B of a forward and a backward that overlap. Bubble: idle "
         "time per rank and\n"
         "step, with ideal transfers that take no time. Memory: peak of live activations on rank "
         "r, in "
         "microbatches of\n"
         "one stage.\n";
  for (const ScheduleSpec* spec : specs) print_text(*spec, console.out);
  return kExitOk;
}

}  // namespace pipewright::cli
