// WAITs: each has one SEND or REDUCE_GRAD before it on its rank, and each of those has one WAIT, if
// the program has any of that kind. The rules are those of PyTorch 2.15, which frees the buffers of
// a SEND at its WAIT only, and keeps one reduction in flight per rank.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/verify/verify_checks.h"

namespace pipewright::schedule {
namespace {

using ir::Action;
using ir::ActionKind;
using ir::ActionPart;

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

bool check_waits(const ir::Program& program, bool sends_are_checked, ir::Diagnostics* diagnostics) {
  const ir::KindSet kinds = ir::kinds_in(program.rows);
  if ((kinds & ir::kWaits) == 0) return false;
  const bool sends = (kinds & ir::kSendWaits) != 0 && !sends_are_checked;
  const bool reductions = (kinds & ir::bit_of(ActionKind::kWaitReduceGrad)) != 0;
  if (!sends && !reductions) return true;
  for (size_t rank = 0; rank < program.rows.size(); ++rank)
    Waits(program.rows[rank], rank, diagnostics).check(sends, reductions);
  return true;
}

}  // namespace pipewright::schedule
