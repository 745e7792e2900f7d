#include "cli/input.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <utility>

#include "cli/files.h"
#include "cli/usage_error.h"
#include "ir/printable.h"
#include "ir/read.h"
#include "ir/render.h"
#include "ir/spelling.h"
#include "schedules/registry.h"

namespace pipewright::cli {
namespace {

// A policy as an option of the command line: the flag, and the row of the table that it sets.
struct PolicyOption {
  std::string flag;
  const ir::LoweringPolicy* policy;
};

// The policies that a pass stands behind.
const std::vector<PolicyOption>& policy_options() {
  static const std::vector<PolicyOption> kOptions = [] {
    std::vector<PolicyOption> options;
    for (const std::string_view name : {"forward-only", "merge-backward", "split-backward",
                                        "residency", "lookahead", "evict", "reduce-every"}) {
      options.push_back({"--" + std::string(name), ir::find_lowering_policy(name)});
    }
    return options;
  }();
  return kOptions;
}

ValueSpec value_of(const ir::LoweringPolicy& policy) {
  if (policy.values == "true|false") return {};
  if (policy.values == "K") return {ValueKind::kNumber, "K", {}};
  ValueSpec choice{ValueKind::kChoice, "POLICY", {}};
  for (std::string_view rest = policy.values; !rest.empty();) {
    const size_t size = std::min(rest.find('|'), rest.size());
    choice.choices.push_back(rest.substr(0, size));
    rest.remove_prefix(std::min(size + 1, rest.size()));
  }
  return choice;
}

// The policies that were asked for, and the first of their flags.
struct Asked {
  ir::Lowering policies;
  std::string first_flag;         // of any; empty if there is none
  std::string first_for_program;  // of those that only a program can have
};

Asked asked_policies(const Invocation& invocation) {
  Asked asked;
  for (const PolicyOption& option : policy_options()) {
    const std::optional<std::string> value = invocation.text(option.flag);
    if (!value) continue;
    const bool is_flag = value_of(*option.policy).kind == ValueKind::kNone;
    option.policy->set(asked.policies, is_flag ? "true" : *value);
    if (asked.first_flag.empty()) asked.first_flag = option.flag;
    if (!is_flag && asked.first_for_program.empty()) asked.first_for_program = option.flag;
  }
  return asked;
}

// A word is a file if it looks like a path or is there.
bool is_file(const std::string& word) {
  return word == "-" || word.find_first_of("/.") != std::string::npos ||
         ::access(word.c_str(), F_OK) == 0;
}

ir::ComputeOrder make_by_name(const std::string& name, const Invocation& invocation) {
  const schedules::ScheduleSpec* spec = schedules::find_schedule(name);
  if (spec == nullptr) {
    const std::vector<std::string_view> names = schedules::schedule_names();
    const std::string hint = ir::did_you_mean(name, names);
    throw UsageError(
        fmt::format("there is no schedule and no file {}; {}", ir::backticked(name),
                    hint.empty() ? fmt::format("schedules are {}", fmt::join(names, ", ")) : hint));
  }
  const std::optional<int> ranks = invocation.number("--ranks");
  const std::optional<int> microbatches = invocation.number("--microbatches");
  if (!ranks || !microbatches)
    throw UsageError(fmt::format("to make {}, say --ranks and --microbatches", spec->name));
  const int stages =
      invocation.number("--stages").value_or(schedules::default_stages(*spec, *ranks));
  const schedules::Shape shape{*ranks, stages, *microbatches};
  if (const auto error = schedules::shape_error(*spec, shape)) throw UsageError(*error);
  return schedules::make_order(*spec, shape);
}

}  // namespace

ArgumentSpec source_argument() {
  return {{ValueKind::kSource, "SOURCE", {}},
          "a schedule's name, a file (.csv, .plan, .json), or - for stdin"};
}

std::vector<OptionSpec> shape_options() {
  return {
      {"--ranks",
       "",
       {ValueKind::kNumber, "P", {}},
       "ranks, of a name to make, or that the file should have"},
      {"--stages",
       "",
       {ValueKind::kNumber, "S", {}},
       "stages; by default P, or 2P for looped and V schedules"},
      {"--microbatches", "", {ValueKind::kNumber, "M", {}}, "microbatches, likewise"},
  };
}

std::vector<OptionSpec> lowering_options() {
  std::vector<OptionSpec> options;
  for (const PolicyOption& option : policy_options()) {
    options.push_back({option.flag, "", value_of(*option.policy), option.policy->meaning});
  }
  return options;
}

void read_input(const Invocation& invocation, Console& console, Input* input) {
  const std::string& word = invocation.arguments[0];
  if (!is_file(word)) {
    input->schedule = make_by_name(word, invocation);
    return;
  }
  input->source = read_source(word, console);
  const ir::ExpectedShape expected{invocation.number("--ranks"), invocation.number("--stages"),
                                   invocation.number("--microbatches")};
  auto parsed = ir::read_schedule(*input->source, expected, &input->diagnostics);
  if (!parsed) return;
  input->schedule = std::move(parsed->schedule);
  input->cells = std::move(parsed->cells);
}

void lower_input(const Invocation& invocation, ir::Level level,
                 const schedule::PassObserver& observer, Input* input) {
  if (!input->schedule) return;
  const std::optional<std::string> wanted = invocation.text("--level");
  if (wanted) level = *ir::parse_level(*wanted);
  const Asked asked = asked_policies(invocation);
  const auto* order = std::get_if<ir::ComputeOrder>(&*input->schedule);
  if (order == nullptr) {
    const std::string refused = !asked.first_flag.empty()          ? asked.first_flag
                                : level == ir::Level::kComputeOnly ? "--level compute_only"
                                                                   : "";
    if (refused.empty()) return;
    throw UsageError(fmt::format("{} is lowered already, and {} is for compute orders",
                                 input_name(*input), refused));
  }
  if (level == ir::Level::kComputeOnly) {
    if (!asked.first_for_program.empty()) {
      throw UsageError(fmt::format("{} is for lowering, and the level is compute_only",
                                   asked.first_for_program));
    }
    input->schedule = schedule::transform_order(*order, asked.policies, observer);
    return;
  }
  auto program = schedule::lower(*order, asked.policies, &input->diagnostics, observer);
  input->diagnostics.find_places(
      [&](int rank, int step) { return input->cells.place(rank, step); });
  if (program) {
    input->schedule = std::move(*program);
  } else {
    input->schedule.reset();
  }
}

std::string input_name(const Input& input) {
  if (input.source) return ir::printable(input.source->name);
  return input.schedule ? ir::schedule_of(*input.schedule).name : "the schedule";
}

void print_diagnostics(const Input& input, Console& console) {
  console.err << ir::render(input.diagnostics, input.source ? &*input.source : nullptr,
                            {console.err_color, console.err_width});
  const size_t total = input.diagnostics.total();
  if (total == 0) return;
  const ir::Rule first = input.diagnostics.kept().front().rule;
  console.err << fmt::format("{} error{} in {}; `pipewright explain {}` tells more\n", total,
                             total == 1 ? "" : "s", input_name(input), ir::code(first));
}

}  // namespace pipewright::cli
