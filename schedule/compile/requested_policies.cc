#include "pipewright/schedule/compile/requested_policies.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "pipewright/ir/text/header.h"
#include "pipewright/schedule/lowering/add_unshard_reshard.h"
#include "pipewright/schedule/lowering/limit_sends.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/verify/verify_policies.h"

namespace pipewright::schedule {
namespace {

ir::Rule rule_for(bool was_requested) {
  return was_requested ? ir::Rule::kNotApplicable : ir::Rule::kDeclaredPolicy;
}

}  // namespace

std::vector<OverriddenPolicy> overridden_policies(const ir::Lowering& requested,
                                                  const ir::Lowering& recorded) {
  std::vector<OverriddenPolicy> overridden;
  for (const ir::LoweringPolicy& policy : ir::lowering_policies()) {
    const std::optional<std::string> asked = policy.get(requested), known = policy.get(recorded);
    if (asked && known && *asked != *known) overridden.push_back({policy.name, *known, *asked});
  }
  return overridden;
}

bool check_policies(const ir::Lowering& requested, ir::Level from, ir::Level to,
                    std::string_view source, ir::Diagnostics* diagnostics) {
  const size_t before = diagnostics->total();
  const bool to_order = to == ir::Level::kComputeOnly;
  const bool is_lowered = from == ir::Level::kComputeComms && !to_order;
  for (const ir::LoweringPolicy& policy : ir::lowering_policies()) {
    const std::optional<std::string> value = policy.get(requested);
    if (!value) continue;
    // A value that was set in memory may be out of range: it must survive a round trip through
    // text.
    if (ir::Lowering scratch; !policy.set(scratch, *value)) {
      diagnostics->error(ir::Rule::kBadValue,
                         fmt::format("`{}`: expected {}, got `{}`", policy.name,
                                     ir::values_in_words(policy), *value));
    } else if (is_lowered && policy.step != ir::PolicyStep::kChannels) {
      ir::Diagnostic& error = diagnostics->error(
          ir::Rule::kNotApplicable,
          fmt::format("`{}` applies only to compute orders; {} is already lowered", policy.name,
                      source));
      error.help = "print it with `--level compute_only` first, and lower the result";
    } else if (to_order && policy.step != ir::PolicyStep::kTransform) {
      diagnostics->error(
          ir::Rule::kNotApplicable,
          fmt::format("`{}` applies only to programs; the level is compute_only", policy.name));
    }
  }
  return diagnostics->total() == before;
}

ir::Lowering combined_policies(const ir::Lowering& requested, const ir::Lowering& recorded) {
  ir::Lowering to_lower;
  for (const ir::LoweringPolicy& policy : ir::lowering_policies()) {
    const std::optional<std::string> value = policy.get(recorded);
    if (value && policy.step != ir::PolicyStep::kTransform) policy.set(to_lower, *value);
  }
  return ir::overlay(requested, to_lower);
}

void set_channels(const ir::Lowering& requested, ir::Lowering* recorded) {
  const ir::Lowering before = *recorded;
  for (const ir::LoweringPolicy& policy : ir::lowering_policies()) {
    const std::optional<std::string> value = policy.get(requested);
    if (value && policy.step == ir::PolicyStep::kChannels) policy.set(*recorded, *value);
  }
  const bool other_model =
      recorded->channels != before.channels || recorded->capacity != before.capacity;
  if (other_model && before.channels && recorded->receives == ir::Receives::kLatest)
    recorded->receives = std::nullopt;
}

bool changes_order(const ir::Lowering& policies) {
  return std::ranges::any_of(ir::lowering_policies(), [&](const ir::LoweringPolicy& policy) {
    return policy.step == ir::PolicyStep::kTransform && policy.get(policies) == "true";
  });
}

bool check_lookahead(const ir::Lowering& requested, const ir::Lowering& policies, int num_ranks,
                     ir::Diagnostics* diagnostics) {
  if (!policies.lookahead) return true;
  const auto problem = lookahead_problem(*policies.lookahead, num_ranks,
                                         policies.residency.value_or(ResidencyPolicy().residency));
  if (!problem) return true;
  diagnostics->error(rule_for(requested.lookahead.has_value()), "`lookahead`: " + *problem);
  return false;
}

bool check_residency(const ir::Lowering& requested, const ir::Lowering& policies,
                     const ir::ComputeOrder& order, const ir::Program& program,
                     ir::Diagnostics* diagnostics) {
  if (!policies.residency || program.lowering.residency) return true;
  const int least = least_residency(transform_order(order, requested), residency_policy(policies));
  diagnostics
      ->error(rule_for(requested.residency.has_value()),
              fmt::format("`residency` is too low for the compounds of the schedule, each of which "
                          "needs two stages: expected at least {}, got {}",
                          least, *policies.residency))
      .help = fmt::format("set `residency` to {}", least);
  return false;
}

bool check_wait_policies(const ir::Lowering& requested, const ir::Lowering& policies,
                         const ir::Program& program, ir::Diagnostics* diagnostics) {
  const size_t before = diagnostics->total();
  const auto refuse = [&](bool was_requested, std::string message, std::string help) {
    diagnostics->error(rule_for(was_requested), std::move(message)).help = std::move(help);
  };
  if (program.lowering.torch == ir::Torch::k2_11) {
    for (const std::string_view name : {"defer-reduce-grad-wait", "max-outstanding-sends"}) {
      const ir::LoweringPolicy& policy = *ir::find_lowering_policy(name);
      if (!policy.get(policies)) continue;
      refuse(policy.get(requested) || requested.torch,
             fmt::format("`{}` applies only to programs with WAITs; those for torch 2.11 have none",
                         name),
             "set `torch` to 2.15");
    }
  } else if (policies.max_outstanding_sends && !program.lowering.max_outstanding_sends) {
    const int least = least_pending_sends(program);
    refuse(requested.max_outstanding_sends.has_value(),
           fmt::format("`max-outstanding-sends` is too low: a rank would wait for a SEND that "
                       "cannot finish yet; expected at least {}, got {}",
                       least, *policies.max_outstanding_sends),
           fmt::format("set `max-outstanding-sends` to {}", least));
  }
  return diagnostics->total() == before;
}

}  // namespace pipewright::schedule
