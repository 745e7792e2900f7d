#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/ir/check.h"
#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/verify/verify_checks.h"

namespace pipewright::schedule {
namespace {

using ir::ActionKind;
using ir::ActionPart;

// Ascending numbers as text, with at most four ranges: "3", "3 to 5", "3, 7 to 9, ...".
std::string ranges(const std::vector<int>& numbers) {
  std::string text;
  int shown = 0;
  for (size_t begin = 0; begin < numbers.size();) {
    size_t end = begin + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    if (shown++ == 4) return text + ", ...";
    if (!text.empty()) text += ", ";
    text += end == begin + 1 ? std::to_string(numbers[begin])
                             : fmt::format("{} to {}", numbers[begin], numbers[end - 1]);
    begin = end;
  }
  return text;
}

}  // namespace

std::optional<WorkIndex> WorkIndex::build(const ir::Schedule& schedule,
                                          ir::Diagnostics* diagnostics) {
  const size_t errors_before = diagnostics->total();
  WorkIndex index;
  index.has_backward_ = ir::has_backward(schedule);
  size_t num_forwards = 0;
  for (const ir::Row& row : schedule.rows) {
    for (const ir::Action& action : row) {
      for (const ActionPart part : action.parts())
        num_forwards += part.kind() == ActionKind::kForward;
    }
  }
  // One action with a huge microbatch index must not cost the memory of all the missing ones.
  const size_t num_cells = static_cast<size_t>(schedule.placement.num_stages()) *
                           static_cast<size_t>(schedule.num_microbatches);
  if (num_forwards < num_cells / 2) {
    diagnostics
        ->error(
            ir::Rule::kMissingWork,
            fmt::format("{} of {} forwards are missing: {} with {} each", num_cells - num_forwards,
                        num_cells, ir::counted(schedule.placement.num_stages(), "stage", "stages"),
                        ir::counted(schedule.num_microbatches, "microbatch", "microbatches")))
        .help = "a microbatch index that is too high makes all below it missing";
    return std::nullopt;
  }
  Cell absent;
  absent.fill(kAbsent);
  index.cells_ = {schedule.placement, schedule.num_microbatches, absent};
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    const ir::Row& row = schedule.rows[rank];
    for (size_t step = 0; step < row.size(); ++step) {
      for (const ActionPart part : row[step].parts()) {
        const size_t slot = slot_of(part.kind());
        if (slot == kNoSlot) continue;
        Cell& steps = index.cells_.at(part.stage(), part.microbatch());
        if (steps[slot] == kAbsent) {
          steps[slot] = static_cast<uint32_t>(step);
          continue;
        }
        ir::Diagnostic& error = diagnostics->error(
            ir::Rule::kDuplicateAction,
            fmt::format("`{}` appears twice on rank {}", ir::to_string(part), rank),
            ir::place_at(rank, step));
        error.notes.push_back({fmt::format("`{}` is here first", ir::to_string(part)),
                               ir::place_at(rank, steps[slot])});
        error.help = "remove it";
      }
    }
  }
  index.check_complete(schedule, diagnostics);
  if (diagnostics->total() > errors_before) return std::nullopt;
  return index;
}

void WorkIndex::check_complete(const ir::Schedule& schedule, ir::Diagnostics* diagnostics) const {
  const ir::Placement& placement = schedule.placement;
  for (int instance = 0; instance < placement.num_instances(); ++instance) {
    const int stage = placement.stage_of_instance(instance);
    const int rank = placement.rank_of_instance(instance);
    const int begin = placement.microbatch_of_instance(instance);
    const int end = begin + placement.microbatches_of_instance(instance, schedule.num_microbatches);
    std::vector<int> no_forward, no_backward, no_weight;
    for (int microbatch = begin; microbatch < end; ++microbatch) {
      const Cell& steps = cells_.at(stage, microbatch);
      if (steps[kForwardSlot] == kAbsent) no_forward.push_back(microbatch);
      if (!has_backward_) continue;
      const bool whole = steps[kBackwardSlot] != kAbsent;
      if (whole) check_whole(stage, microbatch, rank, diagnostics);
      if (!whole && steps[kInputSlot] == kAbsent) {
        no_backward.push_back(microbatch);
      } else if (!whole && steps[kWeightSlot] == kAbsent) {
        no_weight.push_back(microbatch);
      }
    }
    const auto report = [&](const std::vector<int>& microbatches, std::string_view what,
                            ActionKind missing) {
      if (microbatches.empty()) return;
      ir::Place place;
      place.rank = rank;
      const ActionPart first(missing, stage, microbatches[0]);
      diagnostics
          ->error(ir::Rule::kMissingWork,
                  fmt::format("stage {} on rank {} has no {} of microbatch{} {}", stage, rank, what,
                              microbatches.size() == 1 ? "" : "es", ranges(microbatches)),
                  place)
          .help = fmt::format("add `{}`{} on rank {}", ir::to_string(first),
                              microbatches.size() == 1 ? "" : " and the others", rank);
    };
    report(no_forward, "F", ActionKind::kForward);
    report(no_backward, "B or I", ActionKind::kBackward);
    report(no_weight, "W", ActionKind::kBackwardWeight);
  }
}

// A B together with an I or a W: one of the two forms of the backward is too many. A complete I and
// W stay, and otherwise the B.
void WorkIndex::check_whole(int stage, int microbatch, int rank,
                            ir::Diagnostics* diagnostics) const {
  const Cell& steps = cells_.at(stage, microbatch);
  const bool split = steps[kInputSlot] != kAbsent && steps[kWeightSlot] != kAbsent;
  const auto name_of = [&](size_t slot) {
    return ir::to_string(ActionPart(kSlots[slot], stage, microbatch));
  };
  for (const size_t rival : {kInputSlot, kWeightSlot}) {
    if (steps[rival] == kAbsent) continue;
    const auto [first, second] = std::minmax(steps[rival], steps[kBackwardSlot]);
    const auto at = [&](size_t step) { return ir::place_at(static_cast<size_t>(rank), step); };
    const bool rival_first = steps[rival] == first;
    const std::string earlier = name_of(rival_first ? rival : kBackwardSlot),
                      later = name_of(rival_first ? kBackwardSlot : rival);
    ir::Diagnostic& error = diagnostics->error(
        ir::Rule::kBackwardTwice,
        fmt::format("`{}` and `{}` both compute {} of stage {} for microbatch {}", earlier, later,
                    rival == kInputSlot ? "the input gradient" : "the gradients of the weights",
                    stage, microbatch),
        at(second));
    error.notes.push_back({fmt::format("`{}` is here first", earlier), at(first)});
    error.help = fmt::format("remove `{}`", name_of(split ? kBackwardSlot : rival));
  }
}

namespace {

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

  // Results of the part's own rank, and of the slice that it follows, must be computed before it;
  // in a program, results of other ranks must be received before it.
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
    if (const auto before = ir::slice_before(part, schedule_.slices)) {
      const ActionKind kind =
          part.kind() == ActionKind::kForward ? part.kind() : ActionKind::kBackwardInput;
      const std::optional<int> made = index_.step_of(kind, part.stage(), *before);
      if (made && static_cast<size_t>(*made) >= step) report_too_early(rank, step, part, *made);
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
                         ir::to_string(compute), rank,
                         schedule_.placement.rank_of(need.stage, compute.microbatch()),
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

// WAITs: each has one SEND or REDUCE_GRAD before it on its rank, and each of those has one WAIT, if
// the program has any of that kind. The rules are those of PyTorch 2.15, which frees the buffers of
// a SEND at its WAIT only, and keeps one reduction in flight per rank.

namespace {

using ir::Action;

// One rank's row.
class Waits {
 public:
  Waits(const ir::Row& row, size_t rank, ir::Diagnostics* diagnostics)
      : row_(row), rank_(rank), diagnostics_(*diagnostics) {}

  void check(bool sends, bool reductions) {
    for (size_t step = 0; step < row_.size(); ++step) {
      if (row_[step].is_idle() || row_[step].is_compound()) continue;
      const ActionPart part = row_[step].parts()[0];
      if (part.kind() == ActionKind::kWaitReduceGrad || (sends && ir::is_wait_send(part.kind()))) {
        visit_wait(part, step);
      } else if (sends && ir::is_send(part.kind())) {
        open(part, step);
      } else if (reductions && part.kind() == ActionKind::kReduceGrad) {
        visit_reduction(part, step);
      }
    }
    for (const auto& [operation, step] : open_) report_not_awaited(operation, step);
  }

 private:
  void open(ActionPart operation, size_t step) {
    if (awaited_too_early_.erase(operation) == 0) open_.try_emplace(operation, step);
  }

  void visit_wait(ActionPart wait, size_t step) {
    const ActionPart operation = ir::awaited_by(wait);
    if (open_.erase(operation) > 0) {
      closed_[operation] = step;
      if (operation == reduction_) reduction_.reset();
      return;
    }
    if (const auto closed = closed_.find(operation); closed != closed_.end()) {
      ir::Diagnostic& error =
          report(ir::Rule::kDuplicateAction, step,
                 fmt::format("`{}` appears twice on rank {}", ir::to_string(wait), rank_));
      error.notes.push_back({fmt::format("`{}` is here first", ir::to_string(wait)),
                             ir::place_at(rank_, closed->second)});
      error.help = "remove it";
      return;
    }
    const std::optional<size_t> later = find_after(operation, step);
    if (!later) {
      report(ir::Rule::kWaitsForNothing, step,
             fmt::format("`{}` on rank {} waits for `{}`, which the rank does not have",
                         ir::to_string(wait), rank_, ir::to_string(operation)))
          .help = "remove it";
      return;
    }
    awaited_too_early_.insert(operation);
    ir::Diagnostic& error =
        report(ir::Rule::kWaitsForNothing, step,
               fmt::format("`{}` on rank {} comes before `{}`, which it waits for",
                           ir::to_string(wait), rank_, ir::to_string(operation)));
    error.notes.push_back(
        {fmt::format("`{}` is here", ir::to_string(operation)), ir::place_at(rank_, *later)});
    error.help = fmt::format("move it after `{}`", ir::to_string(operation));
  }

  // A stage may be reduced several times; each time is awaited.
  void visit_reduction(ActionPart reduction, size_t step) {
    closed_.erase(reduction);
    if (reduction_) {
      const ActionPart before = *reduction_, wait = ir::wait_for(before);
      const size_t since = open_.extract(before).mapped();
      const std::optional<size_t> later = find_after(wait, step);
      if (!later || before == reduction) {
        report_not_awaited(before, since);
      } else {
        ir::Diagnostic& error =
            report(ir::Rule::kReductionPending, step,
                   fmt::format("`{}` on rank {} begins while `{}` is pending",
                               ir::to_string(reduction), rank_, ir::to_string(before)));
        error.notes.push_back(
            {fmt::format("`{}` is here", ir::to_string(before)), ir::place_at(rank_, since)});
        error.help = fmt::format("move `{}` before it", ir::to_string(wait));
        open_.emplace(before, since);  // the later wait is its own
      }
    }
    open(reduction, step);
    reduction_ = open_.contains(reduction) ? std::optional(reduction) : std::nullopt;
  }

  std::optional<size_t> find_after(ActionPart part, size_t step) const {
    const auto found =
        std::find(row_.begin() + static_cast<std::ptrdiff_t>(step) + 1, row_.end(), Action(part));
    if (found == row_.end()) return std::nullopt;
    return static_cast<size_t>(found - row_.begin());
  }

  void report_not_awaited(ActionPart operation, size_t step) {
    report(ir::Rule::kNotAwaited, step,
           fmt::format("`{}` on rank {} is never awaited", ir::to_string(operation), rank_))
        .help =
        ir::is_send(operation.kind())
            ? fmt::format("add `{}` on rank {}", ir::to_string(ir::wait_for(operation)), rank_)
            : fmt::format("add `{}` after it", ir::to_string(ir::wait_for(operation)));
  }

  ir::Diagnostic& report(ir::Rule rule, size_t step, std::string message) {
    return diagnostics_.error(rule, std::move(message), ir::place_at(rank_, step));
  }

  const ir::Row& row_;
  const size_t rank_;
  ir::Diagnostics& diagnostics_;
  std::map<ActionPart, size_t> open_, closed_;  // SENDs and REDUCE_GRADs, and where they are
  std::set<ActionPart> awaited_too_early_;
  std::optional<ActionPart> reduction_;  // that is pending
};

}  // namespace

bool check_waits(const ir::Program& program, ir::KindSet kinds, bool sends_are_checked,
                 ir::Diagnostics* diagnostics) {
  if ((kinds & ir::kWaits) == 0) return false;
  const bool sends = (kinds & ir::kSendWaits) != 0 && !sends_are_checked;
  const bool reductions = (kinds & ir::bit_of(ActionKind::kWaitReduceGrad)) != 0;
  if (!sends && !reductions) return true;
  for (size_t rank = 0; rank < program.rows.size(); ++rank)
    Waits(program.rows[rank], rank, diagnostics).check(sends, reductions);
  return true;
}

}  // namespace pipewright::schedule
