#include "pipewright/schedule/lowering/lower.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "pipewright/ir/check.h"
#include "pipewright/ir/tables.h"
#include "pipewright/schedule/graph/deadlock.h"
#include "pipewright/schedule/lowering/add_send_recv.h"
#include "pipewright/schedule/lowering/add_unshard_reshard.h"
#include "pipewright/schedule/lowering/limit_sends.h"
#include "pipewright/schedule/lowering/place_receives.h"

namespace pipewright::schedule {
namespace {

constexpr std::string_view kForwardOnly = "forward_only", kMergeBackward = "merge_backward",
                           kSplitBackward = "split_backward",
                           kAddUnshardReshard = "add_unshard_reshard",
                           kAddReduceGrad = "add_reduce_grad", kAddSendRecv = "add_send_recv",
                           kLatestReceives = "latest_receives", kParityReceives = "parity_receives",
                           kAddWaitSend = "add_wait_send", kLimitSends = "limit_sends";

constexpr std::string_view kPassNames[] = {
    kForwardOnly, kMergeBackward,  kSplitBackward,  kAddUnshardReshard, kAddReduceGrad,
    kAddSendRecv, kLatestReceives, kParityReceives, kAddWaitSend,       kLimitSends};

// A pass that transforms a compute order, and the policy that enables it.
struct OrderPass {
  std::string_view name;
  std::optional<bool> ir::Lowering::*asked;
  ir::ComputeOrder (*run)(ir::ComputeOrder);
};
constexpr OrderPass kOrderPasses[] = {
    {kForwardOnly, &ir::Lowering::forward_only, forward_only},
    {kMergeBackward, &ir::Lowering::merge_backward, merge_backward},
    {kSplitBackward, &ir::Lowering::split_backward, split_backward},
};

bool is_asked(const OrderPass& pass, const ir::Lowering& policies) {
  return (policies.*pass.asked).value_or(false);
}

}  // namespace

std::span<const std::string_view> pass_names() { return kPassNames; }

ir::ComputeOrder transform_order(ir::ComputeOrder order, const ir::Lowering& policies,
                                 const PassObserver& observer) {
  for (const OrderPass& pass : kOrderPasses) {
    if (!is_asked(pass, policies)) continue;
    order = pass.run(std::move(order));
    if (observer) observer(pass.name, order);
  }
  return order;
}

std::optional<ir::Program> lower(const ir::ComputeOrder& order, const ir::Lowering& policies,
                                 ir::Diagnostics* diagnostics, const PassObserver& observer) {
  const auto observe = [&](std::string_view name, const ir::Program& program) {
    if (observer) observer(name, program);
  };
  const ir::Torch torch = policies.torch.value_or(ir::kNewestTorch);
  const bool waits = torch == ir::Torch::k2_15;
  // The order is copied only if a pass changes it.
  std::optional<ir::ComputeOrder> changed;
  if (std::ranges::any_of(kOrderPasses,
                          [&](const OrderPass& pass) { return is_asked(pass, policies); }))
    changed = transform_order(order, policies, observer);
  ir::Program program = add_unshard_reshard(changed ? *changed : order, residency_policy(policies));
  program.lowering.torch = torch;
  if (waits) program.lowering.defer_reduce_grad_wait = policies.defer_reduce_grad_wait;
  changed.reset();
  observe(kAddUnshardReshard, program);
  program =
      add_reduce_grad(std::move(program), policies.reduce_every,
                      !waits                                            ? ReduceWaits::kNone
                      : policies.defer_reduce_grad_wait.value_or(false) ? ReduceWaits::kDeferred
                                                                        : ReduceWaits::kAtOnce);
  observe(kAddReduceGrad, program);
  std::optional<ir::Program> lowered = add_send_recv(std::move(program));
  if (!lowered) {
    check_can_run(transform_order(order, policies), diagnostics);
    return std::nullopt;
  }
  observe(kAddSendRecv, *lowered);
  if (policies.receives == ir::Receives::kLatest) {
    lowered = latest_receives(std::move(*lowered), policies.channels.value_or(ir::kDefaultChannels),
                              policies.capacity.value_or(ir::kDefaultCapacity));
    observe(kLatestReceives, *lowered);
  }
  if (policies.receives == ir::Receives::kParity) {
    lowered = parity_receives(std::move(*lowered));
    observe(kParityReceives, *lowered);
  }
  if (!waits) return lowered;
  lowered = add_wait_send(std::move(*lowered));
  observe(kAddWaitSend, *lowered);
  if (policies.max_outstanding_sends) {
    if (auto limited = limit_sends(*lowered, *policies.max_outstanding_sends)) {
      lowered = std::move(limited);
      observe(kLimitSends, *lowered);
    }
  }
  return lowered;
}

ir::ComputeOrder compute_order(ir::Program program) {
  ir::ComputeOrder order{std::move(program)};
  for (ir::Row& row : order.rows)
    std::erase_if(row, [](const ir::Action& action) { return !ir::is_compute(action.kind()); });
  return order;
}

ir::Program add_reduce_grad(ir::Program program, std::optional<int> every, ReduceWaits waits) {
  PW_CHECK(!every || *every >= 1, "a REDUCE_GRAD comes after at least one microbatch");
  program.lowering.reduce_every = every;
  const ir::Placement& placement = program.placement;
  const ir::InstanceNumbers instances = placement.instances();
  const auto all_of = [&](int instance) {
    return placement.microbatches_of_instance(instance, program.num_microbatches);
  };
  std::vector<int> left;  // B or W that are still to come, by instance
  for (int instance = 0; instance < placement.num_instances(); ++instance)
    left.push_back(all_of(instance));
  // An action to insert after the one at this step.
  struct Insertion {
    size_t step;
    ir::Action action;
  };
  std::vector<Insertion> insertions;
  for (ir::Row& row : program.rows) {
    insertions.clear();
    std::optional<int> pending;  // a stage
    const auto wait = [&](size_t step, int stage) {
      insertions.push_back({step, {ir::ActionKind::kWaitReduceGrad, stage}});
    };
    for (size_t step = 0; step < row.size(); ++step) {
      for (const ir::ActionPart part : row[step].parts()) {
        if (!ir::completes_backward(part.kind())) continue;
        const int instance = instances.of(part.stage(), part.microbatch());
        const int still = --left[static_cast<size_t>(instance)];
        if (still != 0 && !(every && (all_of(instance) - still) % *every == 0)) continue;
        if (pending) wait(step, *pending);
        insertions.push_back({step, {ir::ActionKind::kReduceGrad, part.stage()}});
        if (waits == ReduceWaits::kAtOnce) wait(step, part.stage());
        if (waits == ReduceWaits::kDeferred) pending = part.stage();
      }
    }
    if (pending) wait(row.size() - 1, *pending);
    // From the end, so that each action moves once and the row is not rebuilt for a few insertions.
    size_t from = row.size();
    row.resize(row.size() + insertions.size());
    size_t to = row.size();
    for (auto one = insertions.rbegin(); one != insertions.rend(); ++one) {
      while (from > one->step + 1) row[--to] = row[--from];
      row[--to] = one->action;
    }
  }
  return program;
}

ir::Program add_wait_send(ir::Program program) {
  using ir::ActionKind;
  // Whether a SEND_F is pending.
  ir::StageMicrobatchTable<uint8_t> pending(program.placement, program.num_microbatches);
  ir::Row row;
  for (ir::Row& actions : program.rows) {
    row.clear();
    for (const ir::Action& action : actions) {
      row.push_back(action);
      for (const ir::ActionPart part : action.parts()) {
        if (part.kind() == ActionKind::kSendF) pending.at(part.stage(), part.microbatch()) = 1;
        if (ir::gives_input_gradient(part.kind()) &&
            std::exchange(pending.at(part.stage(), part.microbatch()), 0) != 0)
          row.emplace_back(ActionKind::kWaitSendF, part.stage(), part.microbatch());
      }
    }
    for (const ir::Action& action : actions) {
      if (!ir::is_send(action.kind())) continue;
      const ir::ActionPart send = action.parts()[0];
      if (send.kind() == ActionKind::kSendB || pending.at(send.stage(), send.microbatch()) != 0)
        row.emplace_back(ir::wait_for(send));
    }
    actions = row;
  }
  return program;
}

namespace {

using ir::Action;
using ir::ActionKind;
using ir::ActionPart;

// Rebuilds every row: `add(action, row)` appends what one action becomes. Idle slots are dropped.
template <typename Add>
ir::ComputeOrder rebuild(ir::ComputeOrder order, Add add) {
  for (ir::Row& row : order.rows) {
    ir::Row built;
    built.reserve(row.size());
    for (const Action& action : row) {
      if (!action.is_idle()) add(action, &built);
    }
    row = std::move(built);
  }
  return order;
}

ActionPart as(ActionKind kind, ActionPart part) { return {kind, part.stage(), part.microbatch()}; }

}  // namespace

ir::ComputeOrder merge_backward(ir::ComputeOrder order) {
  order.lowering.merge_backward = true;
  order.lowering.split_backward = std::nullopt;  // merging undoes it
  return rebuild(std::move(order), [](const Action& action, ir::Row* row) {
    if (action.kind() == ActionKind::kBackwardWeight && !row->empty()) {
      const ActionPart weight = action.parts()[0];
      if (row->back() == Action(as(ActionKind::kBackwardInput, weight))) {
        row->back() = as(ActionKind::kBackward, weight);
        return;
      }
    }
    row->push_back(action);
  });
}

ir::ComputeOrder split_backward(ir::ComputeOrder order) {
  order.lowering.split_backward = true;
  return rebuild(std::move(order), [](const Action& action, ir::Row* row) {
    ActionPart parts[2];
    ActionPart weights[2];
    size_t num_parts = 0;
    size_t num_weights = 0;
    for (const ActionPart part : action.parts()) {
      const bool whole = part.kind() == ActionKind::kBackward;
      parts[num_parts++] = whole ? as(ActionKind::kBackwardInput, part) : part;
      if (whole) weights[num_weights++] = as(ActionKind::kBackwardWeight, part);
    }
    row->push_back(num_parts == 2 ? Action::overlap(parts[0], parts[1]) : Action(parts[0]));
    for (size_t index = 0; index < num_weights; ++index) row->emplace_back(weights[index]);
  });
}

ir::ComputeOrder forward_only(ir::ComputeOrder order) {
  order.lowering.forward_only = true;
  return rebuild(std::move(order), [](const Action& action, ir::Row* row) {
    for (const ActionPart part : action.parts()) {
      if (part.kind() == ActionKind::kForward) row->emplace_back(part);
    }
  });
}

}  // namespace pipewright::schedule
