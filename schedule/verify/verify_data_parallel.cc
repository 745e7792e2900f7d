#include <fmt/format.h>

#include <string>
#include <vector>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/verify/verify_checks.h"

namespace pipewright::schedule {
namespace {

using ir::Action;
using ir::ActionKind;
using ir::ActionPart;

bool has_any(const ir::Program& program, ActionKind first, ActionKind second) {
  for (const ir::Row& row : program.rows) {
    for (const Action& action : row) {
      if (action.kind() == first || action.kind() == second) return true;
    }
  }
  return false;
}

// The state of a stage's parameters during the walk along a row.
struct Parameters {
  bool unsharded = false;
  bool used = false;  // since the last UNSHARD
  size_t unsharded_at = 0;
};

// The state of a stage's gradients during the walk along a row.
struct Gradients {
  int total = 0;  // B and W so far
  int since_reduce = 0;
  size_t last_added = 0;
  bool reduced = false;
};

}  // namespace

void check_residency(const ir::Program& program, bool weight_free_w, ir::Diagnostics* diagnostics) {
  if (!has_any(program, ActionKind::kUnshard, ActionKind::kReshard)) return;
  std::vector<Parameters> stages(static_cast<size_t>(program.placement.num_stages()));
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    const ir::Row& row = program.rows[rank];
    for (size_t step = 0; step < row.size(); ++step) {
      if (ir::is_transfer(row[step].kind())) continue;  // the most frequent, and irrelevant here
      const auto refuse = [&](ir::Rule rule, std::string message) -> ir::Diagnostic& {
        return diagnostics->error(rule, std::move(message), ir::place_at(rank, step));
      };
      for (const ActionPart part : row[step].parts()) {
        Parameters& stage = stages[static_cast<size_t>(part.stage())];
        if (part.kind() == ActionKind::kUnshard) {
          if (stage.unsharded) {
            ir::Diagnostic& error =
                refuse(ir::Rule::kUnshardTwice,
                       fmt::format("`{}` on rank {}, but the stage is already unsharded",
                                   ir::to_string(part), rank));
            error.notes.push_back(
                {"it was unsharded here", ir::place_at(rank, stage.unsharded_at)});
            error.help = "remove it";
          }
          stage = {true, false, step};
        } else if (part.kind() == ActionKind::kReshard) {
          if (!stage.unsharded) {
            refuse(ir::Rule::kReshardWithoutUnshard,
                   fmt::format("`{}` on rank {}, but the stage is not unsharded",
                               ir::to_string(part), rank))
                .help = "remove it";
          } else if (!stage.used) {
            ir::Diagnostic& error = refuse(
                ir::Rule::kReshardBeforeUse,
                fmt::format("`{}` on rank {} frees a stage that was not used since its UNSHARD",
                            ir::to_string(part), rank));
            error.notes.push_back(
                {"it was unsharded here", ir::place_at(rank, stage.unsharded_at)});
            error.help = "remove it and that UNSHARD";
          }
          stage.unsharded = false;
        } else if (ir::is_compute(part.kind())) {
          if (!stage.unsharded && !(weight_free_w && part.kind() == ActionKind::kBackwardWeight)) {
            refuse(ir::Rule::kSharded, fmt::format("`{}` on rank {} runs on a sharded stage",
                                                   ir::to_string(part), rank))
                .help = fmt::format("add `{}UNSHARD` before it", part.stage());
          }
          stage.used = true;
        }
      }
    }
  }
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    if (!stages[stage].unsharded) continue;
    const auto rank = static_cast<size_t>(program.placement.rank_of(static_cast<int>(stage)));
    diagnostics
        ->error(ir::Rule::kLeftUnsharded,
                fmt::format("stage {} on rank {} is unsharded at the end", stage, rank),
                ir::place_at(rank, stages[stage].unsharded_at))
        .help = fmt::format("add `{}RESHARD` after its last use", stage);
  }
}

void check_reduction(const ir::Program& program, ir::Diagnostics* diagnostics) {
  if (!has_any(program, ActionKind::kReduceGrad, ActionKind::kReduceGrad)) return;
  const std::optional<int> every = program.lowering.reduce_every;
  std::vector<Gradients> stages(static_cast<size_t>(program.placement.num_stages()));
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    const ir::Row& row = program.rows[rank];
    for (size_t step = 0; step < row.size(); ++step) {
      if (ir::is_transfer(row[step].kind())) continue;  // the most frequent, and irrelevant here
      for (const ActionPart part : row[step].parts()) {
        Gradients& stage = stages[static_cast<size_t>(part.stage())];
        if (ir::completes_backward(part.kind())) {
          ++stage.total;
          ++stage.since_reduce;
          stage.last_added = step;
        } else if (part.kind() == ActionKind::kReduceGrad) {
          if (stage.since_reduce == 0) {
            diagnostics
                ->error(ir::Rule::kReduceTwice,
                        fmt::format("`{}` on rank {} has nothing to reduce: no B or W of the stage "
                                    "since the previous one",
                                    ir::to_string(part), rank),
                        ir::place_at(rank, step))
                .help = "remove it";
          } else if (every && stage.since_reduce != *every &&
                     !(stage.total == program.num_microbatches && stage.since_reduce < *every)) {
            diagnostics
                ->error(
                    ir::Rule::kReduceCount,
                    fmt::format("`{}` on rank {} reduces a wrong number of microbatches: expected "
                                "{} (reduce-every), got {}",
                                ir::to_string(part), rank, *every, stage.since_reduce),
                    ir::place_at(rank, step))
                .help = fmt::format("remove `reduce-every: {}` from the header", *every);
          }
          stage.since_reduce = 0;
          stage.reduced = true;
        }
      }
    }
  }
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    if (stages[stage].since_reduce == 0) continue;
    const auto rank = static_cast<size_t>(program.placement.rank_of(static_cast<int>(stage)));
    diagnostics
        ->error(ir::Rule::kReduceMissing,
                fmt::format("stage {} on rank {} has no REDUCE_GRAD{}", stage, rank,
                            stages[stage].reduced ? " after its last gradient" : " at all"),
                ir::place_at(rank, stages[stage].last_added))
        .help = fmt::format("add `{}REDUCE_GRAD` after it", stage);
  }
}

}  // namespace pipewright::schedule
