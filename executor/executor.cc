// Idea: all checks that need no communication run in the constructor; then the ranks compare a
// digest through the store (coordinator.h), and only then is a channel opened. A step splits the
// batch, runs each action of this rank's row in order (action_runner.h), and waits for what is in
// flight. Every exception on the way ends in fail(), which
//
//   1. reports it through the store, and so learns which failure of all ranks was first,
//   2. aborts this rank's channels, so that peers that wait for it fail as well,
//   3. throws a StepError that starts with the first failure.
//
// Invariant: after the constructor, all ranks run the same verified program with the same options;
// after a step that returned, step_ is the same on all ranks; after a failure no rank runs another
// step.
//
// Complexity: linear in the number of this rank's actions per step. The constructor, and the first
// eval(), are linear in the number of all actions.
#include "pipewright/executor/executor.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "pipewright/executor/digest.h"
#include "pipewright/executor/program_check.h"
#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/verify/verify.h"

namespace pipewright::executor {
namespace {

// "[0, 2]".
std::string bracketed(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return "[" + text + "]";
}

std::vector<int> ranks_of(const ir::Program& program, const comms::World& world,
                          const ExecutorOptions& options) {
  const int expected = program.placement.num_ranks();
  std::vector<int> ranks = options.ranks;
  if (ranks.empty()) {
    ranks.resize(static_cast<size_t>(expected));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  const bool fits =
      ranks.size() == static_cast<size_t>(expected) &&
      std::ranges::all_of(ranks, [&](int rank) { return rank >= 0 && rank < world.size(); });
  if (!fits) {
    throw std::invalid_argument("ranks of the program: expected " + std::to_string(expected) +
                                " ranks of a world of " + std::to_string(world.size()) + ", got " +
                                bracketed(ranks));
  }
  return ranks;
}

int rank_in(const std::vector<int>& ranks, const comms::World& world) {
  const auto found = std::ranges::find(ranks, world.rank());
  if (found == ranks.end()) {
    throw std::invalid_argument("world rank " + std::to_string(world.rank()) +
                                " is not assigned a program rank");
  }
  return static_cast<int>(found - ranks.begin());
}

void check_program(const ir::Program& program, bool allow_unverified) {
  const std::string problems =
      problems_of(program, allow_unverified ? Check::kShape : Check::kVerify);
  if (!problems.empty()) throw std::invalid_argument("the program is not valid:\n" + problems);
}

void check_stages(const ir::Placement& placement, int rank,
                  const std::map<int, LocalStage>& stages) {
  const std::vector<int> expected = placement.stages_of(rank);
  const auto fail = [&](int stage, const char* problem) {
    throw std::invalid_argument("stage " + std::to_string(stage) + problem + ", expected stages " +
                                bracketed(expected) + " on rank " + std::to_string(rank));
  };
  for (const auto& [stage, local] : stages) {
    if (std::ranges::find(expected, stage) == expected.end())
      fail(stage, " does not belong to this rank");
    if (!local.stage) fail(stage, " is null");
  }
  for (const int stage : expected) {
    if (!stages.contains(stage)) fail(stage, " is missing");
  }
}

std::vector<DigestPart> digest_parts(const ir::Program& program, const ExecutorOptions& options) {
  const auto flag = [](const char* name, bool value) {
    return DigestPart{name, value ? "true" : "false"};
  };
  return digest_of(program, {flag("scale_grads", options.scale_grads),
                             flag("allow_unverified", options.allow_unverified),
                             flag("weight_free_w", program.lowering.weight_free_w.value_or(false)),
                             flag("output_metas given", options.output_metas != nullptr),
                             {"input_dims", to_string(options.input_dims)},
                             {"extra_dims", to_string(options.extra_dims)},
                             {"target_dims", to_string(options.target_dims)},
                             {"output_dims", to_string(options.output_dims)}});
}

Microbatches split(const Batch& batch, int count, const ExecutorOptions& options) {
  const auto split_tensors = [&](const Tensors& tensors, const SplitDims& dims, const char* what) {
    return tensors.empty() ? std::vector<Tensors>() : split_batch(tensors, count, dims, what);
  };
  return {split_tensors(batch.inputs, options.input_dims, "input"),
          split_tensors(batch.extra, options.extra_dims, "extra input"),
          split_tensors(batch.targets, options.target_dims, "target")};
}

void check_counts(const Microbatches& microbatches, const ir::Program& program, int rank) {
  const auto expected = static_cast<size_t>(program.num_microbatches);
  const auto check_count = [&](const std::vector<Tensors>& list, const char* what) {
    if (list.empty() || list.size() == expected) return;
    throw std::invalid_argument(std::string(what) + ": expected " + std::to_string(expected) +
                                " microbatches, got " + std::to_string(list.size()));
  };
  check_count(microbatches.inputs, "inputs");
  check_count(microbatches.extra, "extra inputs");
  check_count(microbatches.targets, "targets");
  if (microbatches.inputs.empty() && program.placement.rank_of(0) == rank)
    throw std::invalid_argument(
        "inputs: expected microbatches on the rank of the first stage, got none");
}

}  // namespace

Executor::Executor(ir::Program program, std::map<int, LocalStage> stages, comms::World& world,
                   ExecutorOptions options)
    : program_(std::move(program)),
      options_(std::move(options)),
      ranks_(ranks_of(program_, world, options_)),
      rank_(rank_in(ranks_, world)),
      timeout_(options_.timeout.value_or(world.timeout())),
      coordinator_(world, ranks_, rank_, timeout_) {
  const ir::Placement& placement = program_.placement;
  std::string error;
  std::vector<DigestPart> digest;
  try {
    check_program(program_, options_.allow_unverified);
    has_backward_ = ir::has_backward(program_);
    row_ = plan_row(program_.rows[static_cast<size_t>(rank_)]);
    check_stages(placement, rank_, stages);
    if (stages.contains(placement.num_stages() - 1) && has_backward_ && !options_.loss)
      throw std::invalid_argument(
          "loss: expected a function on the rank of the last stage, got none");
    digest = digest_parts(program_, options_);
  } catch (const std::invalid_argument& caught) {
    error = caught.what();
  }
  coordinator_.agree(error, digest);
  const std::vector<comms::Edge> edges = edges_of(program_);
  const ir::ChannelModel model = schedule::options_of(program_.lowering).channels;
  if (!edges.empty()) {
    channels_.emplace(world, coordinator_.key(), ranks_, model, edges, options_.device);
    transfers_.emplace(placement, *channels_, world.store(), coordinator_.key(),
                       Transfers::Options{model, timeout_, options_.device, options_.output_metas,
                                          [this] { coordinator_.check_peers(); }});
  }
  runner_.emplace(placement, program_.num_microbatches, std::move(stages),
                  transfers_ ? &*transfers_ : nullptr,
                  ActionRunner::Options{options_.loss, options_.scale_grads,
                                        program_.lowering.weight_free_w.value_or(false)});
}

Executor::~Executor() = default;

StepResult Executor::step(const Batch& batch, bool return_outputs) {
  return run(false, return_outputs,
             [&] { return split(batch, program_.num_microbatches, options_); });
}

StepResult Executor::step(Microbatches microbatches, bool return_outputs) {
  return run(false, return_outputs, [&] { return std::move(microbatches); });
}

StepResult Executor::eval(const Batch& batch, bool return_outputs) {
  return run(true, return_outputs,
             [&] { return split(batch, program_.num_microbatches, options_); });
}

StepResult Executor::eval(Microbatches microbatches, bool return_outputs) {
  return run(true, return_outputs, [&] { return std::move(microbatches); });
}

void Executor::set_function(ir::ActionKind kind, ActionFunction function) {
  runner_->set_function(kind, std::move(function));
}

void Executor::forget_shapes() {
  if (transfers_) transfers_->forget_shapes();
}

const RowPlan& Executor::eval_row() {
  if (eval_row_) return *eval_row_;
  if (!has_backward_) return row_;
  ir::Row row = forward_only(program_).rows[static_cast<size_t>(rank_)];
  // Lowering adds UNSHARD and RESHARD; a program without them keeps its stages unsharded.
  if (!row_.has_residency) {
    std::erase_if(row, [](const ir::Action& action) {
      return action.kind() == ir::ActionKind::kUnshard || action.kind() == ir::ActionKind::kReshard;
    });
  }
  return eval_row_.emplace(plan_row(row));
}

StepResult Executor::run(bool evaluates, bool return_outputs,
                         const std::function<Microbatches()>& prepare) {
  if (!failure_.empty()) throw StepError("no step can run after a failure: " + failure_);
  const bool with_backward = has_backward_ && !evaluates;
  const c10::AutoGradMode grad_mode(with_backward);
  StepOutputs results;
  const PlannedAction* current = nullptr;
  const auto where = [&] {
    const std::string step = "rank " + std::to_string(rank_) + ", step " + std::to_string(step_);
    if (!current) return step + ": ";
    return step + ", action " + std::to_string(current->step) + " `" +
           ir::to_string(current->action) + "`: ";
  };
  try {
    const RowPlan& row = evaluates ? eval_row() : row_;
    Microbatches microbatches = prepare();
    check_counts(microbatches, program_, rank_);
    runner_->begin(row, with_backward, return_outputs, std::move(microbatches));
    for (const PlannedAction& planned : row.actions) {
      current = &planned;
      runner_->run(planned);
    }
    current = nullptr;
    results = runner_->finish();
  } catch (const std::exception& error) {
    fail(where() + error.what());
  } catch (...) {
    fail(where() + "expected a std::exception, got an exception of another type");
  }
  ++step_;
  StepResult result{std::move(results.losses), {}};
  // All ranks have completed the step; outputs that cannot be merged concern this caller alone.
  if (!results.outputs.empty())
    result.outputs = merge_batch(results.outputs, options_.output_dims, "output");
  return result;
}

void Executor::fail(const std::string& message) {
  failure_ = message;
  std::string explained = message;
  if (options_.allow_unverified) {
    const std::string problems = problems_of(program_, Check::kVerify);
    if (!problems.empty())
      explained += "\nthe program was not verified, and is not valid:\n" + problems;
  }
  const std::string first = coordinator_.report_failure(explained);
  const bool elsewhere = !first.empty() && first != explained;
  failure_ = elsewhere ? first + "\n  and then " + message : explained;
  if (transfers_) transfers_->clear();
  if (channels_) channels_->abort();
  try {
    runner_->clear();
    coordinator_.linger_after_failure();
  } catch (const std::exception&) {
    // The error that is reported is the first one.
  }
  throw StepError(failure_);
}

}  // namespace pipewright::executor
