#include "pipewright/cli/input.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <utility>

#include "pipewright/cli/files.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/ir/lowering.h"
#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/header.h"
#include "pipewright/ir/text/render.h"
#include "pipewright/ir/text/spelling.h"
#include "pipewright/schedules/catalogue.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::cli {

StageRatio ratio_of(const Invocation& invocation, const ir::Schedule& before,
                    const ir::Schedule& after) {
  for (const char* option : {"--costs", "--forward", "--backward-input", "--backward-weight"}) {
    if (invocation.has(option)) return {};
  }
  return {before.placement.num_stages(), after.placement.num_stages()};
}

void scale_stages(const StageRatio& ratio, schedule::Costs* costs) {
  for (const char* cost : {"F", "I", "W"}) schedule::scale_cost(cost, ratio.value(), costs);
}

std::string describe(const StageRatio& ratio) {
  return fmt::format(
      "compared as one model: a stage of the second is {}/{} of a stage of the first, in time and "
      "in activations",
      ratio.before, ratio.after);
}

namespace {

// The lowering policies as options.
struct PolicyOption {
  std::string flag;
  const ir::LoweringPolicy* policy;
};

const std::vector<PolicyOption>& policy_options() {
  static const std::vector<PolicyOption> kOptions = [] {
    std::vector<PolicyOption> options;
    for (const ir::LoweringPolicy& policy : ir::lowering_policies())
      options.push_back({"--" + std::string(policy.name), &policy});
    return options;
  }();
  return kOptions;
}

// "K", "K|full|auto|K,K,...", "N|inf"
ValueSpec value_of(const ir::PolicyValues& values) {
  std::string shown = values.least == 0 ? "N" : "K";
  for (const std::string_view choice : values.choices) shown.append("|").append(choice);
  switch (values.kind) {
    case ir::PolicyKind::kFlag:
      return {};
    case ir::PolicyKind::kCount:
      return {values.choices.empty() ? ValueKind::kNumber : ValueKind::kText, shown, {}};
    case ir::PolicyKind::kCounts:
      return {ValueKind::kText, shown + "|K,K,...", {}};
    case ir::PolicyKind::kChoice:
      return {ValueKind::kChoice, "POLICY", {values.choices.begin(), values.choices.end()}};
  }
  return {};
}

ir::Lowering policies_of(const Invocation& invocation) {
  ir::Lowering policies;
  for (const PolicyOption& option : policy_options()) {
    const std::optional<std::string> value = invocation.text(option.flag);
    if (!value) continue;
    const bool is_flag = option.policy->values.kind == ir::PolicyKind::kFlag;
    if (!option.policy->set(policies, is_flag ? "true" : *value))
      throw wrong_value(option.flag, ir::values_in_words(*option.policy), *value);
  }
  return policies;
}

// The schedule of the catalogue that the input names, or null.
const schedules::ScheduleSpec* spec_of(const Input& input) {
  return input.file ? nullptr : schedules::find_schedule(input.name);
}

bool plans_for_memory(const schedules::ScheduleSpec* spec) {
  return spec != nullptr && std::ranges::any_of(spec->options, [](const auto& option) {
           return option.name == "memory";
         });
}

double memory_of(const Invocation& invocation, const Input& input) {
  const auto text = invocation.text("--memory");
  if (!text) return 0;
  const double activations = memory_number("--memory", *text);
  return input.may_ignore_memory && !plans_for_memory(spec_of(input)) ? 0 : activations;
}

schedules::Shape shape_of(const Invocation& invocation, const Input& input) {
  return {.ranks = invocation.number("--ranks").value_or(0),
          .stages = invocation.number("--stages").value_or(0),
          .microbatches = invocation.number("--microbatches").value_or(0),
          .group_size = invocation.number("--group-size").value_or(0),
          .extra_warmup = invocation.has("--extra-warmup"),
          .memory = memory_of(invocation, input)};
}

schedule::CompileRequest request_of(const Invocation& invocation, const Input& input) {
  schedule::CompileRequest request;
  if (input.file) {
    request.source = &*input.file;
  } else {
    request.source = input.name;
  }
  request.shape = shape_of(invocation, input);
  request.costs = input.costs;
  return request;
}

void compile(schedule::CompileRequest request, Input* input) {
  input->compiled = {};  // free the previous result before compiling again
  input->compiled = schedule::compile(std::move(request));
  if (!input->file && input->compiled.ok()) input->name = input->schedule().name;
}

// A file that is built in: "ready:zb_h1".
constexpr std::string_view kReady = "ready:";

ir::Source ready_source(const std::string& word) {
  const std::string_view name = std::string_view(word).substr(kReady.size());
  if (const schedules::ReadyFile* file = schedules::find_ready_file(name))
    return {word, std::string(file->text)};
  std::vector<std::string_view> names;
  for (const schedules::ReadyFile& file : schedules::ready_files()) names.push_back(file.name);
  std::string message = fmt::format("there is no ready file {}", ir::backticked(name));
  const std::string hint = ir::did_you_mean(name, names);
  message +=
      hint.empty() ? fmt::format("; ready files are {}", fmt::join(names, ", ")) : "; " + hint;
  throw FileError(message);
}

bool is_name(const std::string& word) { return schedules::find_schedule(word) != nullptr; }

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

// What is not a schedule's name is a file if it is `-`, contains a slash or a dot, or exists.
bool is_file(const std::string& word) {
  return word == "-" || word.find_first_of("/.") != std::string::npos || exists(word);
}

}  // namespace

double positive_number(const std::string& option, std::string_view text) {
  return number_of<double>(option, text, "a number above 0, up to 1e+18",
                           [](double value) { return value > 0 && value <= 1e18; });
}

double memory_number(const std::string& option, std::string_view text) {
  if (text.find(',') != std::string_view::npos)
    throw UsageError(
        fmt::format("{}: expected one number, which holds for every rank, got {}: "
                    "limits of single ranks are not supported",
                    option, ir::backticked(text)));
  return positive_number(option, text);
}

bool plans_with_costs(const Input& input) {
  const schedules::ScheduleSpec* spec = spec_of(input);
  return spec != nullptr && spec->plan_rows != nullptr;
}

ArgumentSpec source_argument() {
  return {
      {ValueKind::kSource, "SOURCE", {}},
      "a schedule's name, a file (.csv, .plan, .json), ready:NAME for a built-in file, or - for "
      "stdin"};
}

std::vector<OptionSpec> shape_options() {
  return {
      number_option("--ranks", "P",
                    "number of ranks: to generate a named schedule, or expected of a file"),
      number_option("--stages", "S",
                    "number of stages; default: P, or 2P for looped and V schedules"),
      number_option("--microbatches", "M", "number of microbatches"),
      number_option("--group-size", "N",
                    "Interleaved1F1B only: microbatches per stage before a rank turns to its next "
                    "stage, as in Megatron-LM"),
      flag_option("--extra-warmup",
                  "Interleaved1F1B only: one more forward before the first backward"),
      text_option("--memory", "K",
                  "V-Adaptive only: plan for K activations per rank, each of one microbatch on all "
                  "stages of the rank; default: the memory of V-Half"),
  };
}

std::vector<OptionSpec> lowering_options() {
  std::vector<OptionSpec> options;
  for (const PolicyOption& option : policy_options()) {
    options.push_back({option.flag, "", value_of(option.policy->values), option.policy->meaning});
  }
  return options;
}

Input read_input(const Invocation& invocation, Console& console, size_t argument) {
  return read_input(invocation.arguments[argument], console);
}

Input read_input(const std::string& word, Console& console) {
  if (is_name(word) && exists(word))
    console.err << fmt::format("note: `{0}` is a schedule's name; the file is `./{0}`\n", word);
  const bool is_ready = word.starts_with(kReady);
  if (is_name(word) || (!is_ready && !is_file(word))) return {std::nullopt, word};
  Input input{is_ready ? ready_source(word) : read_source(word, console), ""};
  input.name = ir::printable(input.file->name);
  return input;
}

void compile_input(const Invocation& invocation, const DefaultLevels& levels, schedule::Depth depth,
                   Input* input, Console& console, const schedule::PassObserver& observer) {
  schedule::CompileRequest request = request_of(invocation, *input);
  request.policies = policies_of(invocation);
  request.level = input->file ? levels.of_file : levels.of_name;
  if (const auto level = invocation.text("--level")) request.level = ir::parse_level(*level);
  request.depth = depth;
  request.observer = observer;
  compile(std::move(request), input);
  if (input->compiled.lost_recording)
    console.err << fmt::format("note: the recording of {} is left out: it is of another order\n",
                               input->name);
  for (const schedule::OverriddenPolicy& one : input->compiled.overridden) {
    const bool is_flag = ir::find_lowering_policy(one.name)->values.kind == ir::PolicyKind::kFlag;
    console.err << fmt::format("note: --{}{} overrides `{}: {}` of {}\n", one.name,
                               is_flag ? "" : " " + one.requested, one.name, one.recorded,
                               input->name);
  }
}

void parse_input(const Invocation& invocation, Input* input) {
  schedule::CompileRequest request = request_of(invocation, *input);
  request.level = std::nullopt;
  request.depth = schedule::Depth::kLower;
  compile(std::move(request), input);
}

void require_ok(const Input& input, Console& console) {
  if (input.compiled.ok()) return;
  print_diagnostics(input, console);
  throw Failed{exit_code_of(input.compiled.diagnostics)};
}

void print_diagnostics(const ir::Diagnostics& diagnostics, const ir::Source* file,
                       const std::string& name, Console& console) {
  console.err << ir::render(diagnostics, file,
                            {console.err_color, console.err_width, console.max_errors});
  const size_t total = diagnostics.total();
  if (total == 0) return;
  const ir::Rule first = diagnostics.kept().front().rule;
  if (first == ir::Rule::kUnknownSchedule)
    console.err << fmt::format("note: there is no file `{}` either\n", ir::printable(name));
  console.err << fmt::format("{} in {}; `pipewright explain {}` tells more\n",
                             ir::counted(total, "error", "errors"), name, ir::code(first));
}

void print_diagnostics(const Input& input, Console& console) {
  print_diagnostics(input.compiled.diagnostics, input.file ? &*input.file : nullptr, input.name,
                    console);
}

int exit_code_of(const ir::Diagnostics& diagnostics) {
  constexpr ir::Rule kRequests[] = {ir::Rule::kUnknownSchedule, ir::Rule::kUnsupportedShape,
                                    ir::Rule::kNotApplicable};
  const bool is_request = std::ranges::any_of(diagnostics.kept(), [&](const ir::Diagnostic& one) {
    return std::ranges::find(kRequests, one.rule) != std::end(kRequests);
  });
  return is_request ? kExitTrouble : kExitInvalid;
}

std::string shape_text(const ir::Schedule& schedule) {
  return fmt::format("{}, {}, {}", ir::counted(schedule.placement.num_ranks(), "rank", "ranks"),
                     ir::counted(schedule.placement.num_stages(), "stage", "stages"),
                     ir::counted(schedule.num_microbatches, "microbatch", "microbatches"));
}

std::string recompute_text(const ir::Schedule& schedule) {
  if (schedule.recompute.empty()) return "no stage";
  if (schedule.recompute.size() == static_cast<size_t>(schedule.placement.num_stages()))
    return "all stages";
  return fmt::format("stage{} {}", schedule.recompute.size() == 1 ? "" : "s",
                     fmt::join(schedule.recompute, ", "));
}

}  // namespace pipewright::cli
