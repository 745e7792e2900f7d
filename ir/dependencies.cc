#include "pipewright/ir/dependencies.h"

#include <map>

#include "pipewright/ir/check.h"

namespace pipewright::ir {
namespace {

// Sends the output of `from_stage` to the next stage.
Transfer forward_transfer(int from_stage, int microbatch, const Placement& placement) {
  return {ActionPart(ActionKind::kSendF, from_stage, microbatch),
          ActionPart(ActionKind::kRecvF, from_stage + 1, microbatch),
          placement.rank_of(from_stage, microbatch), placement.rank_of(from_stage + 1, microbatch)};
}

// Sends the input gradient of `from_stage` to the previous stage.
Transfer backward_transfer(int from_stage, int microbatch, const Placement& placement) {
  return {ActionPart(ActionKind::kSendB, from_stage, microbatch),
          ActionPart(ActionKind::kRecvB, from_stage - 1, microbatch),
          placement.rank_of(from_stage, microbatch), placement.rank_of(from_stage - 1, microbatch)};
}

}  // namespace

Needs needs_of(ActionPart part, const Placement& placement) {
  const int stage = part.stage();
  const int microbatch = part.microbatch();
  const auto need = [&](Result result, int of_stage) {
    return Need{result, of_stage, microbatch, placement.rank_of(of_stage, microbatch)};
  };
  Needs needs;
  switch (part.kind()) {
    case ActionKind::kForward:
      if (stage > 0) needs.add(need(Result::kOutput, stage - 1));
      break;
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      needs.add(need(Result::kOutput, stage));
      if (stage + 1 < placement.num_stages()) needs.add(need(Result::kInputGradient, stage + 1));
      break;
    case ActionKind::kBackwardWeight:
      needs.add(need(Result::kWeightInput, stage));
      break;
    case ActionKind::kSendF:
      needs.add(need(Result::kOutput, stage));
      break;
    case ActionKind::kSendB:
      needs.add(need(Result::kInputGradient, stage));
      break;
    case ActionKind::kRecvF:
    case ActionKind::kRecvB:
    case ActionKind::kUnshard:
    case ActionKind::kReshard:
    case ActionKind::kReduceGrad:
    case ActionKind::kWaitSendF:
    case ActionKind::kWaitSendB:
    case ActionKind::kWaitReduceGrad:
    case ActionKind::kIdle:
      break;
    case ActionKind::kOverlapFB:
      PW_CHECK(false, "needs_of takes one part, not a compound");
  }
  return needs;
}

bool makes(ActionKind kind, Result result) {
  switch (result) {
    case Result::kOutput:
      return kind == ActionKind::kForward;
    case Result::kInputGradient:
      return gives_input_gradient(kind);
    case Result::kWeightInput:
      return kind == ActionKind::kBackwardInput;
  }
  return false;
}

std::optional<Transfer> transfer_of(ActionPart compute, const Placement& placement) {
  std::optional<Transfer> transfer;
  if (compute.kind() == ActionKind::kForward && compute.stage() + 1 < placement.num_stages()) {
    transfer = forward_transfer(compute.stage(), compute.microbatch(), placement);
  } else if (gives_input_gradient(compute.kind()) && compute.stage() > 0) {
    transfer = backward_transfer(compute.stage(), compute.microbatch(), placement);
  }
  if (transfer && transfer->from == transfer->to) return std::nullopt;
  return transfer;
}

std::optional<Transfer> partner_of(ActionPart send_or_receive, const Placement& placement) {
  const int stage = send_or_receive.stage();
  const int microbatch = send_or_receive.microbatch();
  const int last = placement.num_stages() - 1;
  switch (send_or_receive.kind()) {
    case ActionKind::kSendF:
      return stage < last ? std::optional(forward_transfer(stage, microbatch, placement))
                          : std::nullopt;
    case ActionKind::kRecvF:
      return stage > 0 ? std::optional(forward_transfer(stage - 1, microbatch, placement))
                       : std::nullopt;
    case ActionKind::kSendB:
      return stage > 0 ? std::optional(backward_transfer(stage, microbatch, placement))
                       : std::nullopt;
    case ActionKind::kRecvB:
      return stage < last ? std::optional(backward_transfer(stage + 1, microbatch, placement))
                          : std::nullopt;
    case ActionKind::kForward:
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
    case ActionKind::kOverlapFB:
    case ActionKind::kUnshard:
    case ActionKind::kReshard:
    case ActionKind::kReduceGrad:
    case ActionKind::kWaitSendF:
    case ActionKind::kWaitSendB:
    case ActionKind::kWaitReduceGrad:
    case ActionKind::kIdle:
      break;
  }
  PW_CHECK(false, "expected a SEND or RECV");
  return std::nullopt;
}

RankPairs::RankPairs(const Placement& placement) : instances_(placement.instances()) {
  const auto num_instances = static_cast<size_t>(placement.num_instances());
  std::map<std::pair<int, int>, uint32_t> ids;
  const auto id_of = [&](int from, int to) {
    const auto [entry, is_new] = ids.try_emplace({from, to}, size());
    if (is_new) pairs_.emplace_back(from, to);
    return entry->second;
  };
  forward_.resize(num_instances);
  backward_.resize(num_instances);
  for (int one = 0; one + 1 < placement.num_instances(); ++one) {
    const int rank = placement.rank_of_instance(one), next = placement.rank_of_instance(one + 1);
    const bool is_last = placement.stage_of_instance(one) + 1 == placement.num_stages();
    if (rank == next || is_last) continue;
    forward_[static_cast<size_t>(one)] = id_of(rank, next);
    backward_[static_cast<size_t>(one) + 1] = id_of(next, rank);
  }
}

StageDependencies::StageDependencies(const Placement& placement) : answers_(placement) {
  for (int instance = 0; instance < placement.num_instances(); ++instance) {
    for (const ActionKindInfo& row : action_kinds()) {
      if (row.kind == ActionKind::kOverlapFB) continue;
      const ActionPart part = part_of(row.kind, instance, placement);
      Answer& answer = answers_.at(row.kind, instance);
      for (const ir::Need& need : needs_of(part, placement)) {
        answer.needs[answer.num_needs++] = {
            need.result, need.rank != placement.rank_of_instance(instance), need.stage};
      }
      answer.transfer =
          is_transfer(row.kind) ? partner_of(part, placement) : transfer_of(part, placement);
    }
  }
}

}  // namespace pipewright::ir
