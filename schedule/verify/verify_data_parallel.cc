// The state of each stage changes along the row of its rank, so one walk along the rows serves both
// checks.
#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/verify/verify_checks.h"

namespace pipewright::schedule {
namespace {

using ir::ActionKind;
using ir::ActionPart;

// Residency: UNSHARD and RESHARD, and that what a compute uses is unsharded.
class Residency {
 public:
  Residency(const ir::Program& program, bool weight_free_w, ir::Diagnostics* diagnostics)
      : placement_(program.placement),
        weight_free_w_(weight_free_w),
        diagnostics_(*diagnostics),
        instances_(static_cast<size_t>(placement_.num_instances())) {}

  void visit(size_t rank, size_t step, ActionPart part, int instance) {
    Parameters& stage = instances_[static_cast<size_t>(instance)];
    if (ir::is_compute(part.kind())) {
      if (!stage.unsharded && !(weight_free_w_ && part.kind() == ActionKind::kBackwardWeight)) {
        refuse(ir::Rule::kSharded, rank, step,
               fmt::format("`{}` on rank {} runs on a sharded stage", ir::to_string(part), rank))
            .help = fmt::format("add `{}UNSHARD` before it", part.stage());
      }
      stage.used = true;
    } else if (part.kind() == ActionKind::kUnshard) {
      if (stage.unsharded) {
        ir::Diagnostic& error =
            refuse(ir::Rule::kUnshardTwice, rank, step,
                   fmt::format("`{}` on rank {}, but the stage is already unsharded",
                               ir::to_string(part), rank));
        error.notes.push_back({"it was unsharded here", ir::place_at(rank, stage.unsharded_at)});
        error.help = "remove it";
      }
      stage = {true, false, step};
    } else if (part.kind() == ActionKind::kReshard) {
      if (!stage.unsharded) {
        refuse(ir::Rule::kReshardWithoutUnshard, rank, step,
               fmt::format("`{}` on rank {}, but the stage is not unsharded", ir::to_string(part),
                           rank))
            .help = "remove it";
      } else if (!stage.used) {
        ir::Diagnostic& error =
            refuse(ir::Rule::kReshardBeforeUse, rank, step,
                   fmt::format("`{}` on rank {} frees a stage that was not used since its UNSHARD",
                               ir::to_string(part), rank));
        error.notes.push_back({"it was unsharded here", ir::place_at(rank, stage.unsharded_at)});
        error.help = "remove it and that UNSHARD";
      }
      stage.unsharded = false;
    }
  }

  void finish() {
    for (size_t one = 0; one < instances_.size(); ++one) {
      if (!instances_[one].unsharded) continue;
      const int stage = placement_.stage_of_instance(static_cast<int>(one));
      const auto rank = static_cast<size_t>(placement_.rank_of_instance(static_cast<int>(one)));
      refuse(ir::Rule::kLeftUnsharded, rank, instances_[one].unsharded_at,
             fmt::format("stage {} on rank {} is unsharded at the end", stage, rank))
          .help = fmt::format("add `{}RESHARD` after its last use", stage);
    }
  }

 private:
  // The state of a stage's parameters.
  struct Parameters {
    bool unsharded = false;
    bool used = false;  // since the last UNSHARD
    size_t unsharded_at = 0;
  };

  ir::Diagnostic& refuse(ir::Rule rule, size_t rank, size_t step, std::string message) {
    return diagnostics_.error(rule, std::move(message), ir::place_at(rank, step));
  }

  const ir::Placement& placement_;
  const bool weight_free_w_;
  ir::Diagnostics& diagnostics_;
  std::vector<Parameters> instances_;
};

// Reduction: each gradient is reduced, at the declared intervals.
class Reduction {
 public:
  Reduction(const ir::Program& program, ir::Diagnostics* diagnostics)
      : placement_(program.placement),
        num_microbatches_(program.num_microbatches),
        every_(program.lowering.reduce_every),
        diagnostics_(*diagnostics),
        instances_(static_cast<size_t>(placement_.num_instances())) {}

  void visit(size_t rank, size_t step, ActionPart part, int instance) {
    Gradients& stage = instances_[static_cast<size_t>(instance)];
    if (ir::completes_backward(part.kind())) {
      ++stage.total;
      ++stage.since_reduce;
      stage.last_added = step;
    } else if (part.kind() == ActionKind::kReduceGrad) {
      if (stage.since_reduce == 0) {
        refuse(ir::Rule::kReduceTwice, rank, step,
               fmt::format("`{}` on rank {} has nothing to reduce: no B or W of the stage since "
                           "the previous one",
                           ir::to_string(part), rank))
            .help = "remove it";
      } else if (every_ && stage.since_reduce != *every_ &&
                 !(stage.total ==
                       placement_.microbatches_of_instance(instance, num_microbatches_) &&
                   stage.since_reduce < *every_)) {
        refuse(ir::Rule::kReduceCount, rank, step,
               fmt::format("`{}` on rank {} reduces a wrong number of microbatches: expected {} "
                           "(reduce-every), got {}",
                           ir::to_string(part), rank, *every_, stage.since_reduce))
            .help = fmt::format("remove `reduce-every: {}` from the header", *every_);
      }
      stage.since_reduce = 0;
      stage.reduced = true;
    }
  }

  void finish() {
    for (size_t one = 0; one < instances_.size(); ++one) {
      if (instances_[one].since_reduce == 0) continue;
      const int stage = placement_.stage_of_instance(static_cast<int>(one));
      const auto rank = static_cast<size_t>(placement_.rank_of_instance(static_cast<int>(one)));
      refuse(ir::Rule::kReduceMissing, rank, instances_[one].last_added,
             fmt::format("stage {} on rank {} has no REDUCE_GRAD{}", stage, rank,
                         instances_[one].reduced ? " after its last gradient" : " at all"))
          .help = fmt::format("add `{}REDUCE_GRAD` after it", stage);
    }
  }

 private:
  // The state of a stage's gradients.
  struct Gradients {
    int total = 0;  // B and W so far
    int since_reduce = 0;
    size_t last_added = 0;
    bool reduced = false;
  };

  ir::Diagnostic& refuse(ir::Rule rule, size_t rank, size_t step, std::string message) {
    return diagnostics_.error(rule, std::move(message), ir::place_at(rank, step));
  }

  const ir::Placement& placement_;
  const int num_microbatches_;
  const std::optional<int> every_;
  ir::Diagnostics& diagnostics_;
  std::vector<Gradients> instances_;
};

}  // namespace

void check_data_parallel(const ir::Program& program, ir::KindSet kinds, bool weight_free_w,
                         ir::Diagnostics* diagnostics) {
  const bool reduces = (kinds & ir::bit_of(ActionKind::kReduceGrad)) != 0;
  const bool unshards =
      (kinds & (ir::bit_of(ActionKind::kUnshard) | ir::bit_of(ActionKind::kReshard))) != 0;
  if (!unshards && !reduces) return;
  ir::Diagnostics of_reduction;  // reported after those of residency
  Residency residency(program, weight_free_w, diagnostics);
  Reduction reduction(program, &of_reduction);
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    const ir::Row& row = program.rows[rank];
    for (size_t step = 0; step < row.size(); ++step) {
      if (ir::is_transfer(row[step].kind())) continue;  // the most frequent, and irrelevant here
      for (const ActionPart part : row[step].parts()) {
        const int instance = program.placement.instance_on(static_cast<int>(rank), part.stage());
        if (unshards) residency.visit(rank, step, part, instance);
        if (reduces) reduction.visit(rank, step, part, instance);
      }
    }
  }
  if (unshards) residency.finish();
  if (reduces) reduction.finish();
  diagnostics->append(std::move(of_reduction));
}

}  // namespace pipewright::schedule
