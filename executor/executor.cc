// Idea: all checks that need no communication run in the constructor; then the ranks compare a
// digest through the store (coordinator.h), and only then is a channel opened. A step splits the
// batch, agrees with the other ranks that no batch is wrong, runs each action of this rank's row in
// order (action_runner.h), and waits for what is in flight. Every exception after that ends in
// fail(), which
//
//   1. publishes it in the world's failure domain, and so learns which failure was first; this also
//      aborts all groups of the world, so that no rank waits any longer,
//   2. frees the state of the step,
//   3. throws a StepError that starts with the first failure.
//
// Invariant: after the constructor, all ranks run the same verified program with the same options;
// all ranks that are between two steps have the same step_, except after a failure: then reset()
// takes the smallest.
//
// Complexity: linear in the number of this rank's actions per step. The constructor, and the first
// eval(), are linear in the number of all actions.
#include "pipewright/executor/executor.h"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "pipewright/comms/channels.h"
#include "pipewright/comms/clock_offset.h"
#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/torch_gaps/bounded_store.h"
#include "pipewright/executor/action_runner.h"
#include "pipewright/executor/arguments.h"
#include "pipewright/executor/batch_check.h"
#include "pipewright/executor/coordinator.h"
#include "pipewright/executor/hang/device_progress.h"
#include "pipewright/executor/hang/watchdog.h"
#include "pipewright/executor/program/program.h"
#include "pipewright/executor/recorder.h"
#include "pipewright/ir/errors.h"
#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/verify/verify.h"

namespace pipewright::executor {
namespace {

// "step 3, action 5 `2F2`", or "step 3" without an action.
std::string place_of(int64_t step, const PlannedAction* action) {
  const std::string text = "step " + std::to_string(step);
  if (!action) return text;
  return text + ", action " + std::to_string(action->step) + " `" + ir::to_string(action->action) +
         "`";
}

// Without an answer for so long, the store counts as lost.
void limit_requests(const comms::World& world, std::chrono::milliseconds limit) {
  if (auto* store = dynamic_cast<comms::BoundedStore*>(world.store().get()))
    store->limit_requests(limit);
}

}  // namespace

class Executor::Impl {
 public:
  Impl(ir::Program program, std::map<int, LocalStage> stages, comms::World& world,
       ExecutorOptions options);

  StepResult step(const Batch& batch, bool return_outputs);
  StepResult step(Microbatches microbatches, bool return_outputs);
  StepResult eval(const Batch& batch, bool return_outputs);
  StepResult eval(Microbatches microbatches, bool return_outputs);
  void confirm();
  int64_t reset();
  void set_function(ir::ActionKind kind, ActionFunction function);
  void record(bool on);
  ir::Timeline recording();
  void forget_shapes();
  const ir::Program& program() const { return program_; }
  int rank() const { return rank_; }

 private:
  void forget_shapes(bool with_backward);
  const RowPlan& eval_row();
  // `prepare` returns the microbatches, and throws std::invalid_argument if they are wrong.
  StepResult run(bool evaluates, bool return_outputs, const std::function<SplitBatch()>& prepare);
  void set_timeout(std::chrono::milliseconds timeout);
  void expect_end_on_device();
  std::string place() const;  // "step 3, action 5 `2F2`"
  // Calls `body`. What it throws ends the step on every rank of the world, with a StepError.
  void guard(const std::function<void()>& body);
  [[noreturn]] void fail(const std::string& message);
  void unlock() const {
    if (options_.lock) options_.lock->unlock();
  }

  comms::World& world_;
  const std::string id_;  // the same on all ranks
  const ir::Program program_;
  const ExecutorOptions options_;
  const std::vector<int> ranks_;       // world rank of each program rank
  const int rank_;                     // of the program
  std::chrono::milliseconds timeout_;  // of the running step, or of the next one
  Coordinator coordinator_;
  BatchCheck batches_;
  std::optional<BatchComparison> same_batch_;
  std::optional<BatchComparison> rows_;  // if there are other ranks in the pipeline
  RowPlan row_;
  bool has_backward_ = false;  // on any rank

  std::optional<comms::Channels> channels_;
  std::optional<Transfers> transfers_;
  std::optional<ActionRunner> runner_;
  std::optional<RowPlan> eval_row_;
  std::shared_ptr<Watchdog> watchdog_;                // shared with the watcher
  std::optional<comms::ClockOffset> clock_at_start_;  // from program rank 0's; always set
  std::optional<Recorder> recorder_;                  // while record() is on
  int64_t step_ = 0;                                  // the running step, or the next one
  int64_t first_step_ = 0;                            // the first one since the last reset()
  std::optional<int64_t> confirmed_;                  // the first step that is not confirmed
  const PlannedAction* current_ = nullptr;            // the running action
  std::string failure_;  // why no further step can run; empty if it can
};

Executor::Impl::Impl(ir::Program program, std::map<int, LocalStage> stages, comms::World& world,
                     ExecutorOptions options)
    : world_(world),
      id_(world.unique_name("executor")),
      program_(std::move(program)),
      options_(std::move(options)),
      ranks_(ranks_of(program_, world, options_, id_)),
      rank_(rank_in(ranks_, world)),
      timeout_(options_.first_timeout.value_or(options_.timeout.value_or(world.timeout()))),
      coordinator_(world, id_, ranks_, rank_, groups_of(stages, options_.same_batch), timeout_),
      batches_({.num_microbatches = program_.num_microbatches,
                .slices = {program_.slices, options_.slice_dim},
                .num_stages = program_.placement.num_stages(),
                .stages = program_.placement.stages_of(rank_),
                .needs_targets = options_.loss.takes_targets() &&
                                 stages.contains(program_.placement.num_stages() - 1),
                .same_shapes = !options_.dynamic_shapes,
                .dims = {options_.input_dims, options_.extra_dims, options_.target_dims,
                         options_.extra_of_dims}}) {
  const ir::Placement& placement = program_.placement;
  std::string error;
  std::vector<DigestPart> digest;
  try {
    if (options_.same_batch) same_batch_.emplace(world, *options_.same_batch);
    if (placement.num_ranks() > 1) rows_.emplace(world, coordinator_.key() + "/rows");
    check_arguments(program_, rank_, stages, options_);
    has_backward_ = ir::has_backward(program_);
    row_ = plan_row(program_.rows[static_cast<size_t>(rank_)]);
    if (!options_.device.is_cpu()) {
      row_.copies = plan_copies(program_, rank_);
      if (options_.overlap_compounds && program_.slices == 1) plan_streams(&row_);
    } else if (!program_.offload.empty()) {
      TORCH_WARN_ONCE(
          "the stages that the program names in `offload` do not: on the CPU, what they save is on "
          "the host already");
    }
    digest = digest_of(program_, options_);
  } catch (const std::invalid_argument& caught) {
    error = caught.what();
  }
  try {
    coordinator_.agree(error, digest);
    clock_at_start_ =
        comms::clock_offset(world, coordinator_.key() + "/clock", rank_, placement.num_ranks(),
                            comms::steady_clock_of_machine(), timeout_);
  } catch (const std::exception& caught) {
    if (!world.failures().failed()) throw;
    fail(caught.what());
  }
  watchdog_ = std::make_shared<Watchdog>(
      program_, digest.front().value, world.groups(),
      Watchdog::Options{world.rank(), rank_, ranks_, timeout_, options_.allow_unverified,
                        options_.on_stuck, options_.device});
  watchdog_->progress().idle(0);
  world.failures().set_observer(watchdog_);
  limit_requests(world, timeout_);
  const std::vector<comms::Edge> edges = edges_of(program_);
  const schedule::VerifyOptions proved = schedule::options_of(program_.lowering);
  const ir::ChannelModel model = proved.channels;
  const bool is_proved =
      !options_.allow_unverified && model == ir::ChannelModel::kEdge && proved.capacity == 0;
  if (!edges.empty()) {
    try {
      channels_.emplace(world, "channel", ranks_, model, edges, options_.device);
    } catch (const std::exception& caught) {  // perhaps of a peer that knows more
      fail(caught.what());
    }
    transfers_.emplace(
        placement, *channels_, world.store(), coordinator_.key(),
        Transfers::Options{model, is_proved, timeout_, options_.device, options_.output_metas,
                           options_.dynamic_shapes, ranks_, &world.failures(), &*watchdog_,
                           [this](ir::ActionPart receive) {
                             if (recorder_) recorder_->received(receive);
                           },
                           options_.lock.get()});
  }
  runner_.emplace(
      placement, program_.num_microbatches, rank_, std::move(stages),
      transfers_ ? &*transfers_ : nullptr,
      ActionRunner::Options{
          options_.loss, options_.scale_grads, program_.lowering.weight_free_w.value_or(false),
          program_.recompute, program_.slices, options_.lock.get(),
          options_.device.is_cpu() ? std::vector<int>() : program_.offload, options_.device});
}

StepResult Executor::Impl::step(const Batch& batch, bool return_outputs) {
  return run(false, return_outputs, [&] { return batches_.split(batch); });
}

StepResult Executor::Impl::step(Microbatches microbatches, bool return_outputs) {
  return run(false, return_outputs, [&] { return SplitBatch{std::move(microbatches)}; });
}

StepResult Executor::Impl::eval(const Batch& batch, bool return_outputs) {
  return run(true, return_outputs, [&] { return batches_.split(batch); });
}

StepResult Executor::Impl::eval(Microbatches microbatches, bool return_outputs) {
  return run(true, return_outputs, [&] { return SplitBatch{std::move(microbatches)}; });
}

void Executor::Impl::set_function(ir::ActionKind kind, ActionFunction function) {
  runner_->set_function(kind, std::move(function));
}

void Executor::Impl::record(bool on) {
  recorder_.reset();
  if (!on) return;
  const ir::Row& row = program_.rows[static_cast<size_t>(rank_)];
  const size_t num_points = Recorder::num_points(row);
  std::unique_ptr<StepClock> clock;
  if (options_.device.is_cpu())
    clock = std::make_unique<HostClock>(num_points);
  else
    clock = std::make_unique<DeviceClock>(options_.device, num_points);
  recorder_.emplace(row, std::move(clock));
}

ir::Timeline Executor::Impl::recording() {
  if (!failure_.empty()) throw StepError("no recording after a failure: " + failure_);
  if (!recorder_ || !recorder_->is_complete())
    throw ContractError("recording: expected a step after record(), got none");
  ir::Timeline timeline;
  guard([&] {
    const std::string key = coordinator_.key() + "/recording/" + std::to_string(step_);
    timeline =
        gather_recording(world_, key, program_, rank_, *recorder_, comms::steady_clock_of_machine(),
                         clock_at_start_.value(), timeout_);
  });
  return timeline;
}

void Executor::Impl::forget_shapes() {
  forget_shapes(/*with_backward=*/false);
  forget_shapes(/*with_backward=*/true);
}

void Executor::Impl::forget_shapes(bool with_backward) {
  batches_.forget(with_backward);
  if (transfers_) transfers_->forget_shapes(with_backward);
}

const RowPlan& Executor::Impl::eval_row() {
  if (eval_row_) return *eval_row_;
  if (!has_backward_) return row_;
  ir::Program program = forward_only(program_);
  // Lowering adds UNSHARD and RESHARD; a program without them keeps its stages unsharded.
  if (!row_.has_residency) {
    for (ir::Row& row : program.rows) {
      std::erase_if(row, [](const ir::Action& action) {
        return action.kind() == ir::ActionKind::kUnshard ||
               action.kind() == ir::ActionKind::kReshard;
      });
    }
  }
  watchdog_->set_evaluation(program);
  return eval_row_.emplace(plan_row(program.rows[static_cast<size_t>(rank_)]));
}

StepResult Executor::Impl::run(bool evaluates, bool return_outputs,
                               const std::function<SplitBatch()>& prepare) {
  if (!failure_.empty()) throw StepError("no step can run after a failure: " + failure_);
  // Not earlier: what confirms the first step has its limit too.
  if (step_ > first_step_) set_timeout(options_.timeout.value_or(world_.timeout()));
  const bool with_backward = has_backward_ && !evaluates;
  const c10::AutoGradMode grad_mode(with_backward);
  SplitBatch batch;
  const Microbatches& microbatches = batch.microbatches;
  std::string wrong;
  std::vector<std::string> shapes;
  const auto refuse = [&](const std::string& what, int rank) {
    wrong = "rank " + std::to_string(rank) + ", " + place() + ": " + what;
  };
  std::optional<double> bubble;
  bool has_new_shapes = false;  // which evaluations may have
  try {
    if (with_backward && c10::InferenceMode::is_enabled()) {
      throw std::invalid_argument(
          "a training step under c10::InferenceMode, which records no gradients: expected step() "
          "outside of it, or eval()");
    }
    batch = prepare();
    batches_.check(microbatches, with_backward);
    if (batches_.is_known(with_backward))
      batch.rows.reset();
    else
      shapes = batches_.describe(microbatches);
    has_new_shapes = evaluates && batches_.differs_from_last_evaluation(microbatches);
  } catch (const std::exception& error) {
    batch.rows.reset();
    refuse(error.what(), world_.rank());
  }
  StepOutputs results;
  Tensors outputs;
  guard([&] {
    if (same_batch_) {
      const std::string difference = same_batch_->difference(shapes);
      if (!difference.empty()) refuse(difference, world_.rank());
    }
    if (rows_) {
      const std::optional<WrongRows> found = compare_rows(*rows_, world_.rank(), batch.rows);
      if (found && wrong.empty()) refuse(found->text, found->rank);
    }
    const RowPlan& row = evaluates ? eval_row() : row_;
    // A rank that waits here in vain reports the action that it could not begin.
    current_ = row.actions.empty() ? nullptr : &row.actions.front();
    watchdog_->begin(step_, evaluates);
    wrong = coordinator_.begin_step(wrong);
    if (!wrong.empty()) return;
    if (evaluates && !options_.dynamic_shapes && coordinator_.any(has_new_shapes))
      forget_shapes(/*with_backward=*/false);
    batches_.remember(microbatches, with_backward);
    if (with_backward && options_.tied) options_.tied->step_begins();
    Recorder* const recorder = recorder_ && !evaluates ? &*recorder_ : nullptr;
    runner_->begin(row, with_backward, return_outputs, std::move(batch.microbatches), recorder);
    if (recorder) recorder->begin_step();
    for (const PlannedAction& planned : row.actions) {
      current_ = &planned;
      watchdog_->progress().run(planned.step);
      RECORD_USER_SCOPE("PP:" + ir::to_string(planned.action));
      if (recorder) recorder->begin(planned);
      runner_->run(planned);
      if (recorder) recorder->end();
      if (ir::is_compute(planned.action.kind())) watchdog_->computed(planned.step);
    }
    unlock();
    current_ = nullptr;
    watchdog_->progress().end();
    results = runner_->finish();
    if (!results.outputs.empty())
      outputs = merge_batch(results.outputs, options_.output_dims, "output",
                            {program_.slices, options_.slice_dim});
    if (with_backward && options_.tied) options_.tied->add_gradients();
    if (recorder) {
      recorder->end_step();
      // On a device it would block until the step has ended there.
      if (options_.device.is_cpu()) bubble = recorder->bubble();
    }
    watchdog_->finish();
    if (!options_.device.is_cpu()) expect_end_on_device();
  });
  if (!wrong.empty()) throw BatchError(wrong);
  ++step_;
  watchdog_->progress().idle(step_);
  return {std::move(results.losses), std::move(outputs), bubble};
}

void Executor::Impl::set_timeout(std::chrono::milliseconds timeout) {
  if (timeout == timeout_) return;
  timeout_ = timeout;
  limit_requests(world_, timeout);
  coordinator_.set_timeout(timeout);
  watchdog_->set_timeout(timeout);
  if (transfers_) transfers_->set_timeout(timeout);
}

// The step has returned, but the device may still wait for transfers that never come.
void Executor::Impl::expect_end_on_device() {
  world_.failures().expect_by(
      [watchdog = watchdog_, step = step_, limit = timeout_] {
        const std::string place = watchdog->under_way(step);
        if (place.empty()) return place;
        return place + " did not end on its device within " + std::to_string(limit.count()) + " ms";
      },
      timeout_);
}

void Executor::Impl::confirm() {
  if (!failure_.empty()) throw StepError("no step can run after a failure: " + failure_);
  // Steps before the first confirm() count as confirmed, except the last one.
  if (!confirmed_) confirmed_ = std::max<int64_t>(0, step_ - 1);
  guard([&] {
    if (!options_.device.is_cpu()) {
      watchdog_->progress().drain();
      await_device(options_.device, world_.failures());
    }
    watchdog_->progress().confirm();
    coordinator_.confirm_step();
  });
  confirmed_ = step_;
}

int64_t Executor::Impl::reset() {
  step_ = first_step_ = world_.reset(confirmed_.value_or(step_));
  if (confirmed_) confirmed_ = step_;
  if (options_.first_timeout) set_timeout(*options_.first_timeout);
  watchdog_->reset();
  forget_shapes();
  if (transfers_) transfers_->reset_shapes();
  failure_.clear();
  return step_;
}

std::string Executor::Impl::place() const { return place_of(step_, current_); }

void Executor::Impl::guard(const std::function<void()>& body) {
  current_ = nullptr;
  world_.failures().set_observer(watchdog_);
  world_.failures().set_place([this] { return place(); });
  try {
    world_.failures().throw_if_failed();
    body();
  } catch (const std::exception& error) {
    fail(options_.describe ? options_.describe(error) : error.what());
  } catch (...) {
    fail("expected a std::exception, got an exception of another type");
  }
  world_.failures().set_place(nullptr);
  watchdog_->progress().idle(step_);
  current_ = nullptr;
}

void Executor::Impl::fail(const std::string& message) {
  unlock();
  std::string explained = message;
  if (options_.allow_unverified) {
    const std::string problems = problems_of(program_, Check::kVerify);
    if (!problems.empty())
      explained += "\nthe program was not verified, and is not valid:\n" + problems;
  }
  comms::FailureDomain& failures = world_.failures();
  // The constructor may fail before there is a watchdog or a runner.
  const bool is_late = watchdog_ && watchdog_->is_late(std::min(timeout_, world_.timeout()));
  const std::string own = failures.fail(
      explained, is_late ? comms::FailureDomain::Kind::kHang : comms::FailureDomain::Kind::kError);
  if (transfers_) transfers_->clear();
  if (runner_) runner_->clear();
  failures.set_place(nullptr);
  current_ = nullptr;
  failure_ = failures.explain(own);
  if (watchdog_) watchdog_->progress().idle(step_);
  if (failures.hung()) throw HangError(failure_);
  throw StepError(failure_);
}

Executor::Executor(ir::Program program, std::map<int, LocalStage> stages, comms::World& world,
                   ExecutorOptions options)
    : impl_(std::make_unique<Impl>(std::move(program), std::move(stages), world,
                                   std::move(options))) {}
Executor::~Executor() = default;
StepResult Executor::step(const Batch& batch, bool return_outputs) {
  return impl_->step(batch, return_outputs);
}
StepResult Executor::step(Microbatches microbatches, bool return_outputs) {
  return impl_->step(std::move(microbatches), return_outputs);
}
StepResult Executor::eval(const Batch& batch, bool return_outputs) {
  return impl_->eval(batch, return_outputs);
}
StepResult Executor::eval(Microbatches microbatches, bool return_outputs) {
  return impl_->eval(std::move(microbatches), return_outputs);
}
void Executor::confirm() { impl_->confirm(); }
int64_t Executor::reset() { return impl_->reset(); }
void Executor::set_function(ir::ActionKind kind, ActionFunction function) {
  impl_->set_function(kind, std::move(function));
}
void Executor::record(bool on) { impl_->record(on); }
ir::Timeline Executor::recording() { return impl_->recording(); }
void Executor::forget_shapes() { impl_->forget_shapes(); }
const ir::Program& Executor::program() const { return impl_->program(); }
std::string Executor::program_digest() const {
  return digest_of(program(), std::vector<DigestPart>()).front().value;
}
int Executor::rank() const { return impl_->rank(); }

}  // namespace pipewright::executor
