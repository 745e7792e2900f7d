#include "pipewright/schedule/lowering/lower.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "pipewright/schedule/graph/deadlock.h"
#include "pipewright/schedule/lowering/add_reduce_grad.h"
#include "pipewright/schedule/lowering/add_send_recv.h"
#include "pipewright/schedule/lowering/add_unshard_reshard.h"
#include "pipewright/schedule/lowering/add_wait_send.h"
#include "pipewright/schedule/lowering/backward_passes.h"
#include "pipewright/schedule/lowering/latest_receives.h"
#include "pipewright/schedule/lowering/limit_sends.h"
#include "pipewright/schedule/lowering/parity_receives.h"

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

}  // namespace pipewright::schedule
