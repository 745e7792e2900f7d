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

namespace {

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

schedules::Shape shape_of(const Invocation& invocation, const schedules::ScheduleSpec* spec,
                          MemoryOption memory_option) {
  const auto memory = invocation.text("--memory");
  const int replicas = replicas_of(invocation);
  const bool takes_memory =
      memory_option == MemoryOption::kOfSchedule ||
      (spec != nullptr &&
       std::ranges::any_of(spec->options, [](const auto& one) { return one.name == "memory"; }));
  return {.ranks = invocation.number("--ranks").value_or(0),
          .stages = invocation.number("--stages").value_or(0),
          .microbatches = invocation.number("--microbatches").value_or(0),
          .group_size = invocation.number("--group-size").value_or(0),
          .extra_warmup = invocation.has("--extra-warmup"),
          .memory = memory && takes_memory ? positive_number("--memory", *memory) : 0,
          .slices = invocation.number("--slices").value_or(0),
          .replicas = replicas};
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

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

// What is not a schedule's name is a file if it is `-`, contains a slash or a dot, or exists.
bool is_file(const std::string& word) {
  return word == "-" || word.find_first_of("/.") != std::string::npos || exists(word);
}

}  // namespace

int replicas_of(const Invocation& invocation) {
  const int replicas = invocation.number("--replicas").value_or(0);
  if (replicas > 2) throw wrong_value("--replicas", "1 or 2", std::to_string(replicas));
  return replicas;
}

double positive_number(const std::string& option, std::string_view text) {
  return number_of<double>(option, text, "a number above 0, up to 1e+18",
                           [](double value) { return value > 0 && value <= 1e18; });
}

schedule::PerRank memory_numbers(const std::string& option, std::string_view text) {
  if (text.find(',') == std::string_view::npos) return positive_number(option, text);
  std::vector<double> numbers;
  for (bool more = true; more;) {
    const size_t comma = std::min(text.find(','), text.size());
    numbers.push_back(positive_number(option, text.substr(0, comma)));
    more = comma < text.size();
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return schedule::PerRank(std::move(numbers));
}

ArgumentSpec source_argument() {
  return {{ValueKind::kSource, "SOURCE", {}},
          "a schedule's name, a file (.csv, .plan, .json), ready:NAME for a built-in file, or - "
          "for stdin"};
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
      number_option(
          "--slices", "K",
          "GPipe, Seq1F1B, Seq1F1B-I: cut each microbatch into K parts along its sequence; "
          "default: 1; or what a file must have, and a CSV has"),
      number_option("--replicas", "R",
                    "1 or 2 replicas of the model: what a file must have, and a CSV has"),
      text_option("--recompute", "STAGES",
                  "the stages that recompute, such as 0,2, or `all`; default: those that a file "
                  "names"),
      text_option("--offload", "STAGES",
                  "the stages that offload what F saves to the host, likewise"),
      text_option("--memory", "K",
                  "V-Adaptive only: plan for K activations per rank, each of one microbatch on all "
                  "stages of the rank; default: the memory of V-Half"),
  };
}

std::vector<OptionSpec> lowering_options() {
  std::vector<OptionSpec> options;
  for (const auto& [flag, policy] : policy_options())
    options.push_back({flag, "", value_of(policy->values), policy->meaning});
  return options;
}

ir::Lowering policies_of(const Invocation& invocation) {
  ir::Lowering policies;
  for (const auto& [flag, policy] : policy_options()) {
    const std::optional<std::string> value = invocation.text(flag);
    if (!value) continue;
    const bool is_flag = policy->values.kind == ir::PolicyKind::kFlag;
    if (!policy->set(policies, is_flag ? "true" : *value))
      throw wrong_value(flag, ir::values_in_words(*policy), *value);
  }
  return policies;
}

bool Input::plans_with_costs() const {
  const schedules::ScheduleSpec* spec = file ? nullptr : schedules::find_schedule(name);
  return spec != nullptr && spec->plan_rows != nullptr;
}

Input read_input(const Invocation& invocation, const std::string& word, Console& console,
                 MemoryOption memory) {
  const schedules::ScheduleSpec* spec = schedules::find_schedule(word);
  if (spec != nullptr && exists(word))
    console.err << fmt::format("note: `{0}` is a schedule's name; the file is `./{0}`\n", word);
  const bool is_ready = word.starts_with(kReady);
  Input input{word, nullptr, {}};
  schedule::CompileRequest request;
  if (spec != nullptr || (!is_ready && !is_file(word))) {
    request.source = word;
  } else {
    input.file = std::make_shared<const ir::Source>(is_ready ? ready_source(word)
                                                             : read_source(word, console));
    input.name = ir::printable(input.file->name);
    request.source = input.file.get();
  }
  request.shape = shape_of(invocation, spec, memory);
  input.source = schedule::read_source(std::move(request));
  return input;
}

void require_ok(const Input& input, Console& console) {
  const ir::Diagnostics& diagnostics = input.source.diagnostics;
  if (input.source.ok()) return;
  print_diagnostics(diagnostics, input.file.get(), input.name, console);
  throw Failed{exit_code_of(diagnostics)};
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
  console.err << fmt::format("{} in {}; for details, run `pipewright explain {}`\n",
                             ir::counted(total, "error", "errors"), name, ir::code(first));
}

int exit_code_of(const ir::Diagnostics& diagnostics) {
  constexpr ir::Rule kRequests[] = {ir::Rule::kUnknownSchedule, ir::Rule::kUnsupportedShape,
                                    ir::Rule::kNotApplicable};
  const bool is_request = std::ranges::any_of(diagnostics.kept(), [&](const ir::Diagnostic& one) {
    return std::ranges::find(kRequests, one.rule) != std::end(kRequests);
  });
  return is_request ? kExitTrouble : kExitInvalid;
}

}  // namespace pipewright::cli
