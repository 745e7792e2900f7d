#include "pipewright/cli/input.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <initializer_list>
#include <ostream>
#include <string>
#include <utility>

#include "pipewright/cli/files.h"
#include "pipewright/cli/usage_error.h"
#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/header.h"
#include "pipewright/ir/text/read.h"
#include "pipewright/ir/text/render.h"
#include "pipewright/ir/text/spelling.h"
#include "pipewright/schedule/verify/verify.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::cli {
namespace {

// What a policy is for.
enum class PolicyUse {
  kOrder,     // maps orders to orders
  kLowering,  // makes a program of an order
  kChannels,  // of any program: what it is judged by
};

// A policy as an option of the command line: the flag, and the row of the table that it sets.
struct PolicyOption {
  std::string flag;
  const ir::LoweringPolicy* policy;
  PolicyUse use;
};

// The policies that a pass or the verifier stands behind.
const std::vector<PolicyOption>& policy_options() {
  static const std::vector<PolicyOption> kOptions = [] {
    constexpr std::pair<std::string_view, PolicyUse> kUses[] = {
        {"forward-only", PolicyUse::kOrder},     {"merge-backward", PolicyUse::kOrder},
        {"split-backward", PolicyUse::kOrder},   {"residency", PolicyUse::kLowering},
        {"lookahead", PolicyUse::kLowering},     {"evict", PolicyUse::kLowering},
        {"receives", PolicyUse::kLowering},      {"reduce-every", PolicyUse::kLowering},
        {"channels", PolicyUse::kChannels},      {"capacity", PolicyUse::kChannels},
        {"weight-free-w", PolicyUse::kChannels},
    };
    std::vector<PolicyOption> options;
    for (const auto& [name, use] : kUses) {
      options.push_back({"--" + std::string(name), ir::find_lowering_policy(name), use});
    }
    return options;
  }();
  return kOptions;
}

ValueSpec value_of(const ir::LoweringPolicy& policy) {
  if (policy.values == "true|false") return {};
  if (policy.values == "K") return {ValueKind::kNumber, "K", {}};
  if (policy.values == "N|inf") return {ValueKind::kText, policy.values, {}};
  ValueSpec choice{ValueKind::kChoice, "POLICY", {}};
  for (std::string_view rest = policy.values; !rest.empty();) {
    const size_t size = std::min(rest.find('|'), rest.size());
    choice.choices.push_back(rest.substr(0, size));
    rest.remove_prefix(std::min(size + 1, rest.size()));
  }
  return choice;
}

// Sets the policies of some uses that were asked for.
void set_asked(const Invocation& invocation, std::initializer_list<PolicyUse> uses,
               ir::Lowering* policies) {
  for (const PolicyOption& option : policy_options()) {
    const std::optional<std::string> value = invocation.text(option.flag);
    if (!value || std::ranges::find(uses, option.use) == uses.end()) continue;
    const bool is_flag = value_of(*option.policy).kind == ValueKind::kNone;
    if (!option.policy->set(*policies, is_flag ? "true" : *value)) {
      throw UsageError(fmt::format("{} wants {}, found {}", option.flag,
                                   ir::values_in_words(option.policy->values),
                                   ir::backticked(*value)));
    }
  }
}

// The first flag of one of these uses that was asked for; empty if none was.
std::string first_asked(const Invocation& invocation, std::initializer_list<PolicyUse> uses) {
  for (const PolicyOption& option : policy_options()) {
    if (invocation.has(option.flag) && std::ranges::find(uses, option.use) != uses.end())
      return option.flag;
  }
  return "";
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
  schedules::Shape shape{*ranks, stages, *microbatches};
  shape.group_size = invocation.number("--group-size").value_or(0);
  shape.extra_warmup = invocation.has("--extra-warmup");
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
      {"--group-size",
       "",
       {ValueKind::kNumber, "N", {}},
       "of Interleaved1F1B, as in Megatron-LM: microbatches that run through one stage of a rank "
       "before its next"},
      {"--extra-warmup", "", {}, "of Interleaved1F1B: one forward more before the first backward"},
  };
}

std::vector<OptionSpec> lowering_options() {
  std::vector<OptionSpec> options;
  for (const PolicyOption& option : policy_options()) {
    options.push_back({option.flag, "", value_of(*option.policy), option.policy->meaning});
  }
  return options;
}

void read_input(const Invocation& invocation, Console& console, Input* input, size_t argument) {
  const std::string& word = invocation.arguments[argument];
  if (!is_file(word)) {
    input->schedule = make_by_name(word, invocation);
    return;
  }
  for (const schedules::ShapeOption& option : schedules::kShapeOptions) {
    const std::string flag = fmt::format("--{}", option.name);
    if (invocation.has(flag))
      throw UsageError(fmt::format("{} says how to make a schedule, and {} is a file", flag,
                                   ir::backticked(word)));
  }
  input->source = read_source(word, console);
  const ir::ExpectedShape expected{invocation.number("--ranks"), invocation.number("--stages"),
                                   invocation.number("--microbatches")};
  auto parsed = ir::read_schedule(*input->source, expected, &input->diagnostics);
  if (!parsed) return;
  input->schedule = std::move(parsed->schedule);
  input->cells = std::move(parsed->cells);
}

ir::Level own_level(const Input& input, ir::Level of_name) {
  return input.source && input.schedule ? ir::level_of(*input.schedule) : of_name;
}

void lower_input(const Invocation& invocation, ir::Level level,
                 const schedule::PassObserver& observer, Input* input) {
  if (!input->schedule) return;
  const std::optional<std::string> wanted = invocation.text("--level");
  if (wanted) level = *ir::parse_level(*wanted);
  if (auto* program = std::get_if<ir::Program>(&*input->schedule)) {
    std::string refused = first_asked(invocation, {PolicyUse::kOrder, PolicyUse::kLowering});
    if (refused.empty() && level == ir::Level::kComputeOnly) refused = "--level compute_only";
    if (!refused.empty())
      throw UsageError(fmt::format("{} is lowered already, and {} is for compute orders",
                                   input_name(*input), refused));
    set_asked(invocation, {PolicyUse::kChannels}, &program->lowering);
    return;
  }
  const auto& order = std::get<ir::ComputeOrder>(*input->schedule);
  ir::Lowering policies;
  set_asked(invocation, {PolicyUse::kOrder, PolicyUse::kLowering, PolicyUse::kChannels}, &policies);
  if (level == ir::Level::kComputeOnly) {
    const std::string refused =
        first_asked(invocation, {PolicyUse::kLowering, PolicyUse::kChannels});
    if (!refused.empty())
      throw UsageError(fmt::format("{} is for programs, and the level is compute_only", refused));
    input->schedule = schedule::transform_order(order, policies, observer);
    return;
  }
  // As PyTorch does, and so that a few actions far out do not cost the memory of all that are
  // missing.
  if (!schedule::verify(order, &input->diagnostics)) {
    place_diagnostics(input);
    input->schedule.reset();
    return;
  }
  auto program = schedule::lower(order, policies, &input->diagnostics, observer);
  place_diagnostics(input);
  if (!program) {
    input->schedule.reset();
    return;
  }
  set_asked(invocation, {PolicyUse::kChannels}, &program->lowering);
  input->schedule = std::move(*program);
}

void place_diagnostics(Input* input) {
  input->diagnostics.find_places(
      [&](int rank, int step) { return input->cells.place(rank, step); });
  input->diagnostics.sort();
}

std::string count_text(size_t number, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", number, number == 1 ? one : many);
}

std::string shape_text(const ir::Schedule& schedule) {
  const auto size = [](int number) { return static_cast<size_t>(number); };
  return fmt::format("{}, {}, {}",
                     count_text(size(schedule.placement.num_ranks()), "rank", "ranks"),
                     count_text(size(schedule.placement.num_stages()), "stage", "stages"),
                     count_text(size(schedule.num_microbatches), "microbatch", "microbatches"));
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
