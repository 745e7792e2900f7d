#include <fmt/format.h>

#include <string>
#include <utility>

#include "pipewright/ir/stage_dependencies.h"
#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/verify/verify_checks.h"

namespace pipewright::schedule {
namespace {

using ir::ActionKind;
using ir::ActionPart;

// The kind that computes a result, as the index knows it: I also means B.
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

// The checks of one part of an action.
class DataFlow {
 public:
  DataFlow(const ir::Schedule& schedule, const WorkIndex& index, ir::Diagnostics* diagnostics)
      : schedule_(schedule),
        index_(index),
        diagnostics_(*diagnostics),
        dependencies_(schedule.placement) {}

  // Results of the part's own rank must be computed before it; in a program, results of other ranks
  // must be received before it.
  void check_needs(size_t rank, size_t step, ActionPart part, bool in_program) {
    for (const ir::StageDependencies::Need& need : dependencies_.of(part)) {
      if (need.of_other_rank) {
        if (in_program) check_received(rank, step, part, need);
        continue;
      }
      const std::optional<int> made =
          index_.step_of(maker_of(need.result), need.stage, part.microbatch());
      // A part of a compound cannot use a result of the other part.
      if (made && static_cast<size_t>(*made) >= step) report_too_early(rank, step, part, *made);
      if (!made) {
        ir::Diagnostic& error =
            report(ir::Rule::kNeedsEarlier, rank, step,
                   fmt::format("`{}` on rank {} needs a result that no action of the rank computes",
                               ir::to_string(part), rank));
        if (ir::is_send(part.kind())) error.help = "remove it and its other end";
      }
    }
  }

  // A SEND or RECV must have its partner, and a received tensor must be used.
  void check_transfer(size_t rank, size_t step, ActionPart part) {
    const std::optional<ir::Transfer>& transfer = dependencies_.of(part).transfer;
    if (!transfer) {
      report(ir::Rule::kNoPeer, rank, step,
             fmt::format("`{}` on rank {} has no peer stage: the pipeline ends there",
                         ir::to_string(part), rank))
          .help = "remove it";
      return;
    }
    if (transfer->from == transfer->to) {
      report(
          ir::Rule::kNoPeer, rank, step,
          fmt::format("`{}` is between two stages of rank {}, which passes the tensor on locally",
                      ir::to_string(part), rank))
          .help = "remove it and its other end";
      return;
    }
    const bool sends = ir::is_send(part.kind());
    const ActionPart end = sends ? transfer->receive : transfer->send;
    const ActionPart other(end.kind(), end.stage(), part.microbatch());
    if (!index_.step_of(other.kind(), other.stage(), other.microbatch())) {
      report(sends ? ir::Rule::kNeverReceived : ir::Rule::kNeverSent, rank, step,
             fmt::format("`{}` on rank {} is never {}", ir::to_string(part), rank,
                         sends ? "received" : "sent"))
          .help = fmt::format("add `{}` on rank {}", ir::to_string(other),
                              sends ? transfer->to : transfer->from);
    }
    if (sends) return;
    const ActionKind consumer =
        part.kind() == ActionKind::kRecvF ? ActionKind::kForward : ActionKind::kBackwardInput;
    const std::optional<int> used = index_.step_of(consumer, part.stage(), part.microbatch());
    if (!used || static_cast<size_t>(*used) < step) {
      report(ir::Rule::kUnusedReceive, rank, step,
             fmt::format("`{}` on rank {} receives a tensor that no later action uses",
                         ir::to_string(part), rank));
    }
  }

 private:
  void check_received(size_t rank, size_t step, ActionPart compute,
                      const ir::StageDependencies::Need& need) {
    const ActionPart receive = need.receive_for(compute);
    const std::optional<int> received =
        index_.step_of(receive.kind(), compute.stage(), compute.microbatch());
    if (!received) {
      report(ir::Rule::kNeedsEarlier, rank, step,
             fmt::format("`{}` on rank {} needs a result of rank {}, but no `{}` receives it",
                         ir::to_string(compute), rank, schedule_.placement.rank_of(need.stage),
                         ir::to_string(receive)))
          .help = fmt::format("add `{}` before it", ir::to_string(receive));
    } else if (static_cast<size_t>(*received) > step) {
      report_too_early(rank, step, compute, *received);
    }
  }

  ir::Diagnostic& report(ir::Rule rule, size_t rank, size_t step, std::string message) {
    return diagnostics_.error(rule, std::move(message), ir::place_at(rank, step));
  }

  void report_too_early(size_t rank, size_t step, ActionPart part, int needed_step) {
    const ir::Action& needed = schedule_.rows[rank][static_cast<size_t>(needed_step)];
    ir::Diagnostic& error =
        report(ir::Rule::kNeedsEarlier, rank, step,
               fmt::format("`{}` on rank {} comes before `{}`, whose result it needs",
                           ir::to_string(part), rank, ir::to_string(needed)));
    error.notes.push_back({fmt::format("`{}` is here", ir::to_string(needed)),
                           ir::place_at(rank, static_cast<size_t>(needed_step))});
    error.help = ir::is_receive(needed.kind())
                     ? fmt::format("move `{}` before it", ir::to_string(needed))
                     : fmt::format("move it after `{}`", ir::to_string(needed));
  }

  const ir::Schedule& schedule_;
  const WorkIndex& index_;
  ir::Diagnostics& diagnostics_;
  ir::StageDependencies dependencies_;
};

}  // namespace

void check_local_order(const ir::ComputeOrder& order, const WorkIndex& index,
                       ir::Diagnostics* diagnostics) {
  DataFlow flow(order, index, diagnostics);
  for_each_part(order, [&](size_t rank, size_t step, ActionPart part) {
    flow.check_needs(rank, step, part, false);
  });
}

void check_data_flow(const ir::Program& program, const WorkIndex& index, bool transfers_match,
                     ir::Diagnostics* diagnostics) {
  DataFlow flow(program, index, diagnostics);
  for_each_part(program, [&](size_t rank, size_t step, ActionPart part) {
    flow.check_needs(rank, step, part, true);
    if (!transfers_match && ir::is_transfer(part.kind())) flow.check_transfer(rank, step, part);
  });
}

}  // namespace pipewright::schedule
