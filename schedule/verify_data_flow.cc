#include <fmt/format.h>

#include <string>

#include "ir/action_text.h"
#include "ir/dependencies.h"
#include "schedule/add_send_recv.h"
#include "schedule/verify_checks.h"

namespace pipewright::schedule {
namespace {

using ir::ActionKind;
using ir::ActionPart;

// The kind that makes a result, for the index: I stands in for B.
ActionKind maker_of(ir::Result result) {
  switch (result) {
    case ir::Result::kOutput:
      return ActionKind::kForward;
    case ir::Result::kInputGradient:
    case ir::Result::kWeightInput:
      return ActionKind::kBackwardInput;
  }
  return ActionKind::kIdle;
}

template <typename Visit>
void for_each_part(const ir::Schedule& schedule, Visit visit) {
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    const ir::Row& row = schedule.rows[rank];
    for (size_t step = 0; step < row.size(); ++step) {
      for (const ActionPart part : row[step].parts()) visit(rank, step, part);
    }
  }
}

void report_too_early(const ir::Schedule& schedule, size_t rank, size_t step, ActionPart part,
                      int needed_step, ir::Diagnostics* diagnostics) {
  const ir::Action& needed = schedule.rows[rank][static_cast<size_t>(needed_step)];
  ir::Diagnostic& error =
      diagnostics->error(ir::Rule::kNeedsEarlier,
                         fmt::format("`{}` on rank {} stands before `{}`, whose result it needs",
                                     ir::to_string(part), rank, ir::to_string(needed)),
                         ir::place_at(rank, step));
  error.notes.push_back({fmt::format("`{}` stands here", ir::to_string(needed)),
                         ir::place_at(rank, static_cast<size_t>(needed_step))});
}

}  // namespace

void check_local_order(const ir::Schedule& schedule, const WorkIndex& index,
                       ir::Diagnostics* diagnostics) {
  for_each_part(schedule, [&](size_t rank, size_t step, ActionPart part) {
    if (!ir::is_compute(part.kind()) && !ir::is_send(part.kind())) return;
    for (const ir::Need& need : ir::needs_of(part, schedule.placement)) {
      if (need.rank != static_cast<int>(rank)) continue;
      const std::optional<int> made =
          index.step_of(maker_of(need.result), need.stage, need.microbatch);
      // One action does not make what another part of it needs.
      if (made && static_cast<size_t>(*made) >= step)
        report_too_early(schedule, rank, step, part, *made, diagnostics);
      if (!made) {
        diagnostics->error(
            ir::Rule::kNeedsEarlier,
            fmt::format("`{}` on rank {} needs a result that nothing on the rank makes",
                        ir::to_string(part), rank),
            ir::place_at(rank, step));
      }
    }
  });
}

void check_can_run(const ir::ComputeOrder& order, ir::Diagnostics* diagnostics) {
  std::vector<StuckRank> stuck;
  add_send_recv({order}, &stuck);
  report_stuck(stuck, order, diagnostics);
}

void check_transfers(const ir::Program& program, const WorkIndex& index,
                     ir::Diagnostics* diagnostics) {
  for_each_part(program, [&](size_t rank, size_t step, ActionPart part) {
    const int stage = part.stage(), microbatch = part.microbatch();
    if (ir::is_send(part.kind()) || ir::is_receive(part.kind())) {
      const auto transfer = ir::partner_of(part, program.placement);
      if (!transfer) {
        diagnostics->error(
            ir::Rule::kNoPeer,
            fmt::format("`{}` on rank {} has no stage to meet: the pipeline ends there",
                        ir::to_string(part), rank),
            ir::place_at(rank, step));
        return;
      }
      if (transfer->from == transfer->to) {
        diagnostics
            ->error(ir::Rule::kNoPeer,
                    fmt::format(
                        "`{}` is between stages of rank {}, which hands the tensor over by itself",
                        ir::to_string(part), rank),
                    ir::place_at(rank, step))
            .help = "remove it, and its other end";
        return;
      }
      const bool sends = ir::is_send(part.kind());
      const ActionPart other = sends ? transfer->receive : transfer->send;
      const int other_rank = sends ? transfer->to : transfer->from;
      if (!index.step_of(other.kind(), other.stage(), microbatch)) {
        diagnostics
            ->error(sends ? ir::Rule::kNeverReceived : ir::Rule::kNeverSent,
                    fmt::format("`{}` on rank {} is never {}", ir::to_string(part), rank,
                                sends ? "received" : "sent"),
                    ir::place_at(rank, step))
            .help = fmt::format("add `{}` on rank {}", ir::to_string(other), other_rank);
      }
      if (sends) return;
      const ActionKind consumer =
          part.kind() == ActionKind::kRecvF ? ActionKind::kForward : ActionKind::kBackwardInput;
      const std::optional<int> used = index.step_of(consumer, stage, microbatch);
      if (!used || static_cast<size_t>(*used) < step) {
        diagnostics->error(ir::Rule::kUnusedReceive,
                           fmt::format("nothing on rank {} uses what `{}` receives behind it", rank,
                                       ir::to_string(part)),
                           ir::place_at(rank, step));
      }
      return;
    }
    if (!ir::is_compute(part.kind())) return;
    for (const ir::Need& need : ir::needs_of(part, program.placement)) {
      if (need.rank == static_cast<int>(rank)) continue;
      const ActionPart receive(
          need.result == ir::Result::kOutput ? ActionKind::kRecvF : ActionKind::kRecvB, stage,
          microbatch);
      const std::optional<int> received = index.step_of(receive.kind(), stage, microbatch);
      if (!received) {
        diagnostics
            ->error(ir::Rule::kNeedsEarlier,
                    fmt::format("`{}` on rank {} needs what rank {} makes, and no `{}` gets it",
                                ir::to_string(part), rank, need.rank, ir::to_string(receive)),
                    ir::place_at(rank, step))
            .help = fmt::format("add `{}` before it", ir::to_string(receive));
      } else if (static_cast<size_t>(*received) > step) {
        report_too_early(program, rank, step, part, *received, diagnostics);
      }
    }
  });
}

}  // namespace pipewright::schedule
