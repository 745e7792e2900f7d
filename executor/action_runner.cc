#include "pipewright/executor/action_runner.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "pipewright/executor/program/program.h"
#include "pipewright/executor/recorder.h"
#include "pipewright/ir/errors.h"
#include "pipewright/ir/text/action_text.h"

namespace pipewright::executor {

Residency::Residency(int stage, std::shared_ptr<modules::DataParallel> data_parallel)
    : stage_(stage),
      data_parallel_(data_parallel ? std::move(data_parallel)
                                   : std::make_shared<modules::NoDataParallel>()) {}

void Residency::begin(bool with_backward, bool whole_step) {
  state_ = State::kResharded;
  whole_step_ = whole_step;
  has_reduced_ = is_reducing_ = false;
  if (with_backward) data_parallel_->step_begins();
  if (whole_step) unshard();
}

void Residency::finish() {
  wait_reduce();
  // A program may end with an UNSHARD: nothing stays in flight after the step.
  if (whole_step_ || state_ == State::kGathering) need_unsharded();
  if (state_ == State::kUnsharded && (whole_step_ || has_reduced_)) reshard();
}

void Residency::abort() {
  try {
    data_parallel_->abort();
  } catch (const std::exception&) {
    // The step has already failed for another reason, and the other stages must be aborted too.
  }
}

void Residency::unshard() {
  if (state_ != State::kResharded)
    throw ContractError("stage " + std::to_string(stage_) + " is already unsharded");
  data_parallel_->unshard();
  state_ = State::kGathering;
}

void Residency::reshard() {
  need_unsharded();
  data_parallel_->reshard();
  state_ = State::kResharded;
}

void Residency::reduce_grad() {
  data_parallel_->reduce_grad();
  has_reduced_ = is_reducing_ = true;
}

void Residency::wait_reduce() {
  if (std::exchange(is_reducing_, false)) data_parallel_->wait_reduce();
}

void Residency::need_unsharded() {
  if (state_ == State::kResharded)
    throw ContractError("stage " + std::to_string(stage_) + " is not unsharded");
  if (state_ == State::kGathering) data_parallel_->wait_unshard();
  state_ = State::kUnsharded;
}

bool Residency::prepare_backward_weight(bool weight_free) {
  if (!weight_free || state_ == State::kGathering) need_unsharded();
  return state_ == State::kResharded && data_parallel_->frees_parameters();
}

// Idea: each action is a transition of two state machines, which is checked before the action runs
// and made after it. Each stage has a Residency (where its parameters are), and each microbatch of
// a stage has a Phase:
//
//   kNotRun --F--> kForwardDone --B--> kDone
//                  kForwardDone --I--> kInputGradDone --W--> kDone
//
// DataFlow stores the tensors that actions pass to each other.
//
// Invariant: a verified program never fails these checks. An invalid program that was not verified
// fails with a ContractError that names the missing action, and never computes a wrong gradient.
//
// Complexity: O(log stages) per action besides the compute itself. Tensors live from the action
// that produces them to the action that consumes them.

using ir::ActionKind;

namespace {

std::string quoted(ActionKind kind, ir::ActionPart part) {
  return "`" + ir::to_string(ir::Action(kind, part.stage(), part.microbatch())) + "`";
}

}  // namespace

const ir::Action& ActionContext::action() const { return planned_.action; }
Stage& ActionContext::stage(int index) const { return *runner_.local(index).stage; }
void ActionContext::run_default() const { runner_.run_default(planned_); }
void ActionContext::run(ir::ActionPart part) const {
  if (planned_.action.is_compound())
    runner_.run_with_function(part, planned_);
  else
    runner_.run_part(part, planned_);
}

ActionRunner::ActionRunner(const ir::Placement& placement, int num_microbatches, int rank,
                           std::map<int, LocalStage> stages, Transfers* transfers, Options options)
    : last_stage_(placement.num_stages() - 1),
      num_microbatches_(num_microbatches),
      slices_(options.slices),
      weight_free_w_(options.weight_free_w),
      device_(options.device),
      flow_(placement, num_microbatches, rank, transfers,
            {std::move(options.loss), options.scale_grads, options.lock}) {
  for (auto& [index, stage] : stages) {
    stages_.emplace(index,
                    Local{std::move(stage.stage), Residency(index, std::move(stage.data_parallel)),
                          std::ranges::binary_search(options.recompute, index),
                          std::ranges::binary_search(options.offload, index)});
  }
}

void ActionRunner::set_function(ActionKind kind, ActionFunction function) {
  functions_.erase(kind);
  if (function) functions_[kind] = std::move(function);
}

void ActionRunner::begin(const RowPlan& row, bool with_backward, bool keep_outputs,
                         Microbatches microbatches, Recorder* recorder) {
  with_backward_ = with_backward;
  recorder_ = recorder;
  for (auto& [index, stage] : stages_) {
    stage.phases.assign(static_cast<size_t>(num_microbatches_), Phase::kNotRun);
    stage.residency.begin(with_backward, /*whole_step=*/!row.has_residency);
    // Another executor may run the same stages.
    stage.stage->set_slices(slices_);
    if (with_backward) stage.stage->set_recompute(stage.recomputes);
    if (with_backward) stage.stage->set_offload(stage.offloads);
  }
  copies_ = with_backward ? row.copies : std::span<const PlannedCopy>();
  leaving_.clear();
  copied_before_ = -1;
  flow_.begin(with_backward, keep_outputs, std::move(microbatches));
}

template <typename Function>
void ActionRunner::on_stream_of(const PlannedCopy& copy, const Function& function) {
  std::optional<comms::SideStream::Scope> on_side;
  if (copy.on_side) on_side.emplace(compute_stream_, device_);
  function(*local(copy.stage).stage);
}

// The copy stream waits for the current one first, so that the copy is recorded without this wait.
template <typename Function>
void ActionRunner::record_copy(const PlannedCopy& copy, const Function& start) {
  if (recorder_ == nullptr) return start();
  copy_stream_.wait_for_current();
  {
    const comms::SideStream::Scope scope(copy_stream_, device_);
    recorder_->begin_work(copy.is_back ? ir::WorkTrack::kToDevice : ir::WorkTrack::kToHost,
                          {ActionKind::kForward, copy.stage, copy.microbatch});
  }
  start();
  const comms::SideStream::Scope scope(copy_stream_, device_);
  recorder_->end_work();
}

// A copy to the host has the time of one compute: then the device waits for it, so memory is
// bounded by the plan and not by how far the host is ahead.
void ActionRunner::post_copies(int step) {
  if (step == copied_before_) return;  // parts of one compound
  copied_before_ = step;
  for (const PlannedCopy& copy : leaving_)
    on_stream_of(copy, [&](Stage& stage) { stage.free_on_device(copy.microbatch); });
  leaving_.clear();
  for (; !copies_.empty() && copies_.front().before <= step; copies_ = copies_.subspan(1)) {
    const PlannedCopy& copy = copies_.front();
    on_stream_of(copy, [&](Stage& stage) {
      if (!copy.is_back) {
        record_copy(copy, [&] { stage.copy_to_host(copy.microbatch, copy_stream_); });
        leaving_.push_back(copy);
        return;
      }
      const auto copy_back = [&] { stage.copy_back(copy.microbatch, copy_stream_); };
      // What has just been posted has not been freed, so nothing is copied back.
      const bool is_there = std::erase_if(leaving_, [&](const PlannedCopy& one) {
                              return one.stage == copy.stage && one.microbatch == copy.microbatch;
                            }) > 0;
      is_there ? copy_back() : record_copy(copy, copy_back);
    });
  }
}

void ActionRunner::run(const PlannedAction& planned) {
  if (ir::is_compute(planned.action.kind())) post_copies(planned.step);
  const bool forks = !is_forked_ && (planned.on_side[0] || planned.on_side[1]);
  if (forks) fork(planned);
  const auto function = functions_.find(planned.action.kind());
  if (function == functions_.end())
    run_default(planned);
  else
    function->second(ActionContext(*this, planned));
  if (forks) join();
}

// What both streams use has been written on the current one: parameters, by a gather that it waits
// for here, and gradients. Whatever is freed on either stream during an action was allocated there,
// or DataFlow and autograd have said that it is used there. So memory that is freed comes back in a
// later action, which is ordered after this one.
void ActionRunner::fork(const PlannedAction& planned) {
  for (const ir::ActionPart part : planned.action.parts()) {
    Residency& residency = local(part.stage()).residency;
    if (part.kind() == ActionKind::kBackwardWeight)
      residency.prepare_backward_weight(weight_free_w_);
    else
      residency.need_unsharded();
  }
  is_forked_ = true;
  compute_stream_.wait_for_current();
}

void ActionRunner::join() {
  if (std::exchange(is_forked_, false)) compute_stream_.join_current();
}

StepOutputs ActionRunner::finish() {
  StepOutputs results = flow_.finish();
  for (auto& [index, stage] : stages_) {
    stage.residency.finish();
    // An unverified program may have forwards without a backward.
    const bool incomplete = std::ranges::any_of(stage.phases, [](Phase phase) {
      return phase == Phase::kForwardDone || phase == Phase::kInputGradDone;
    });
    if (incomplete) stage.stage->clear();
  }
  return results;
}

void ActionRunner::clear() {
  try {
    join();
  } catch (const std::exception&) {
    // The step has already failed for another reason.
  }
  flow_.clear();
  for (auto& [index, stage] : stages_) {
    stage.residency.abort();
    stage.stage->clear();
  }
}

ActionRunner::Local& ActionRunner::local(int stage) {
  const auto found = stages_.find(stage);
  if (found == stages_.end())
    throw ContractError("stage " + std::to_string(stage) + " is not on this rank");
  return found->second;
}

ActionRunner::Phase& ActionRunner::phase_of(Local& stage, ir::ActionPart part) {
  return stage.phases[static_cast<size_t>(part.microbatch())];
}

void ActionRunner::run_default(const PlannedAction& planned) {
  if (!planned.action.is_compound()) {
    run_part(planned.action.parts()[0], planned);
    return;
  }
  for (const ir::ActionPart part : planned.action.parts()) run_with_function(part, planned);
}

// A part of a compound.
void ActionRunner::run_with_function(ir::ActionPart part, const PlannedAction& planned) {
  const bool is_first = planned.action.parts()[0] == part;
  run({ir::Action(part), planned.step, planned.last_backward, {planned.on_side[is_first ? 0 : 1]}});
}

void ActionRunner::run_part(ir::ActionPart part, const PlannedAction& planned) {
  if (!ir::is_compute(part.kind())) return run_other(part);
  std::optional<comms::SideStream::Scope> on_side;
  if (planned.on_side[0]) on_side.emplace(compute_stream_, device_);
  const bool is_recorded = recorder_ != nullptr && is_forked_;
  const auto track = planned.on_side[0] ? ir::WorkTrack::kCompute2 : ir::WorkTrack::kCompute1;
  if (is_recorded) recorder_->begin_work(track, part);
  if (part.kind() == ActionKind::kForward)
    forward(part);
  else if (part.kind() == ActionKind::kBackwardWeight)
    backward_weight(part, planned.last_backward);
  else
    backward(part, planned.last_backward);
  if (is_recorded) recorder_->end_work();
}

void ActionRunner::run_other(ir::ActionPart part) {
  switch (part.kind()) {
    case ActionKind::kIdle:
    case ActionKind::kOverlapFB:
    case ActionKind::kForward:
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
      return;
    case ActionKind::kUnshard:
      return local(part.stage()).residency.unshard();
    case ActionKind::kReshard:
      return local(part.stage()).residency.reshard();
    case ActionKind::kReduceGrad:
      return local(part.stage()).residency.reduce_grad();
    case ActionKind::kWaitReduceGrad:
      return local(part.stage()).residency.wait_reduce();
    case ActionKind::kSendF:
    case ActionKind::kSendB:
      return flow_.send(part);
    case ActionKind::kRecvF:
    case ActionKind::kRecvB:
      return flow_.receive(part);
    case ActionKind::kWaitSendF:
    case ActionKind::kWaitSendB:
      return flow_.wait_send(part);
  }
}

void ActionRunner::forward(ir::ActionPart part) {
  Local& stage = local(part.stage());
  Phase& phase = phase_of(stage, part);
  if (phase != Phase::kNotRun)
    throw ContractError(quoted(ActionKind::kForward, part) + " has already run in this step");
  stage.residency.need_unsharded();
  const Tensors inputs = flow_.inputs(part);
  const Tensors outputs = stage.stage->forward(part.microbatch(), inputs);
  phase = with_backward_ ? Phase::kForwardDone : Phase::kDone;
  flow_.put_outputs(part, *stage.stage, outputs);
}

void ActionRunner::backward(ir::ActionPart part, bool last_backward) {
  Local& stage = local(part.stage());
  Phase& phase = phase_of(stage, part);
  if (phase != Phase::kForwardDone) {
    throw ContractError(phase == Phase::kNotRun
                            ? quoted(ActionKind::kForward, part) + " has not run"
                            : "the backward of this microbatch has already run");
  }
  stage.residency.need_unsharded();
  const bool whole = part.kind() == ActionKind::kBackward;
  const bool reduces = whole && last_backward;
  Stage& compute = *stage.stage;
  // The backward of a loss of its own may also contribute to the gradients of the stage's weights:
  // these are not their last contributions.
  const bool has_loss = part.stage() == last_stage_ && !compute.joins_loss();
  stage.residency.before_backward(part.microbatch(), reduces && !has_loss);
  if (stage.recomputes) {
    compute.recompute(part.microbatch());
    if (recorder_) recorder_->recomputed();
  }
  Tensors output_grads = flow_.output_grads(part);
  if (reduces && has_loss) stage.residency.before_backward(part.microbatch(), true);
  Tensors grads = whole ? compute.backward(part.microbatch(), std::move(output_grads))
                        : compute.backward_input(part.microbatch(), std::move(output_grads));
  if (reduces) stage.residency.after_last_backward();
  phase = whole ? Phase::kDone : Phase::kInputGradDone;
  flow_.put_input_grads(part, std::move(grads));
}

void ActionRunner::backward_weight(ir::ActionPart part, bool last_backward) {
  Local& stage = local(part.stage());
  Phase& phase = phase_of(stage, part);
  if (phase != Phase::kInputGradDone) {
    throw ContractError(phase == Phase::kDone
                            ? "the backward of this microbatch is already complete"
                            : quoted(ActionKind::kBackwardInput, part) + " has not run");
  }
  const bool resharded = stage.residency.prepare_backward_weight(weight_free_w_);
  if (resharded) {
    // No input of stage 0 requires a gradient, so its I follows a chain through all its weights,
    // the embedding's included (split_backward.cc): W may read any of them.
    if (part.stage() == 0)
      throw ContractError("W of stage 0 may read its weights, which are resharded");
    stage.stage->check_weight_free(part.microbatch());
  }
  stage.residency.before_backward(part.microbatch(), last_backward);
  stage.stage->backward_weight(part.microbatch());
  if (last_backward) stage.residency.after_last_backward();
  phase = Phase::kDone;
}

}  // namespace pipewright::executor
