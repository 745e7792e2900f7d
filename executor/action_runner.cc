#include "pipewright/executor/action_runner.h"

#include <ATen/ops/full_like.h>

#include <algorithm>
#include <string>

#include "pipewright/autograd/split_backward.h"
#include "pipewright/ir/errors.h"
#include "pipewright/ir/text/action_text.h"

namespace pipewright::executor {

using ir::ActionKind;

namespace {

std::string text_of(ActionKind kind, ir::ActionPart part) {
  return "`" + ir::to_string(ir::Action(kind, part.stage(), part.microbatch())) + "`";
}

// A leaf that shares the memory, for the graph of another stage.
Tensors hand_over(const Tensors& tensors) {
  Tensors leaves;
  leaves.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors)
    leaves.push_back(tensor.detach().set_requires_grad(tensor.requires_grad()));
  return leaves;
}

const Tensors& microbatch_of(const std::vector<Tensors>& microbatches, int microbatch) {
  static const Tensors kNone;
  return microbatches.empty() ? kNone : microbatches[static_cast<size_t>(microbatch)];
}

Tensors take(std::optional<Tensors>& from) {
  Tensors tensors = std::move(*from);
  from.reset();
  return tensors;
}

}  // namespace

Stage& ActionContext::stage(int index) const { return *runner_.local(index).with.stage; }
void ActionContext::run_default() const { runner_.run_default(planned_); }
void ActionContext::run(ir::ActionPart part) const {
  if (planned_.action.is_compound())
    runner_.run_with_function(part, planned_);
  else
    runner_.run_part(part, planned_.last_backward);
}

ActionRunner::ActionRunner(const ir::Placement& placement, int num_microbatches,
                           std::map<int, LocalStage> stages, Transfers* transfers, Options options)
    : placement_(placement),
      num_microbatches_(num_microbatches),
      transfers_(transfers),
      options_(std::move(options)) {
  for (auto& [index, stage] : stages) {
    if (!stage.data_parallel) stage.data_parallel = std::make_shared<modules::NoDataParallel>();
    stages_[index].with = std::move(stage);
  }
}

void ActionRunner::set_function(ActionKind kind, ActionFunction function) {
  functions_.erase(kind);
  if (function) functions_[kind] = std::move(function);
}

void ActionRunner::begin(const RowPlan& row, bool with_backward, bool keep_outputs,
                         Microbatches microbatches) {
  with_backward_ = with_backward;
  keep_outputs_ = keep_outputs;
  microbatches_ = std::move(microbatches);
  results_ = {};
  for (auto& [index, stage] : stages_) {
    stage.residency = Residency::kSharded;
    stage.reduces = false;
    stage.slots.clear();
    stage.slots.resize(static_cast<size_t>(num_microbatches_));
    if (with_backward) stage.with.data_parallel->step_begins();
    // A row that does not say when has its stages whole all the time.
    if (row.has_residency) continue;
    stage.with.data_parallel->unshard();
    stage.residency = Residency::kUnsharding;
  }
  has_residency_ = row.has_residency;
  if (is_local(placement_.num_stages() - 1)) {
    results_.losses.resize(static_cast<size_t>(num_microbatches_));
    if (keep_outputs) results_.outputs.resize(static_cast<size_t>(num_microbatches_));
  }
  if (transfers_) transfers_->begin_step(with_backward);
}

void ActionRunner::run(const PlannedAction& planned) {
  const auto function = functions_.find(planned.action.kind());
  if (function == functions_.end())
    run_default(planned);
  else
    function->second(ActionContext(*this, planned));
}

ActionRunner::Results ActionRunner::finish() {
  if (transfers_) transfers_->finish();
  for (auto& [index, stage] : stages_) {
    if (stage.reduces) stage.with.data_parallel->wait_reduce();
    if (!has_residency_) {
      if (stage.residency == Residency::kUnsharding) stage.with.data_parallel->wait_unshard();
      stage.with.data_parallel->reshard();
    }
    // A fragment may leave forwards without a backward.
    const bool unfinished = std::ranges::any_of(stage.slots, [](const Slot& slot) {
      return slot.phase == Phase::kForward || slot.phase == Phase::kInput;
    });
    if (unfinished) stage.with.stage->clear();
    stage.slots.clear();
  }
  microbatches_ = {};
  return std::move(results_);
}

void ActionRunner::clear() {
  for (auto& [index, stage] : stages_) {
    stage.slots.clear();
    try {
      stage.with.data_parallel->abort();
    } catch (const std::exception&) {  // the other stages' peers wait too; the step has its cause
    }
    stage.with.stage->clear();
  }
  microbatches_ = {};
  results_ = {};
}

ActionRunner::Local& ActionRunner::local(int stage) {
  const auto found = stages_.find(stage);
  if (found == stages_.end())
    throw ContractError("stage " + std::to_string(stage) + " is not on this rank");
  return found->second;
}

ActionRunner::Slot& ActionRunner::slot_of(ir::ActionPart part) {
  return local(part.stage()).slots[static_cast<size_t>(part.microbatch())];
}

void ActionRunner::run_default(const PlannedAction& planned) {
  if (!planned.action.is_compound()) {
    run_part(planned.action.parts()[0], planned.last_backward);
    return;
  }
  for (const ir::ActionPart part : planned.action.parts()) run_with_function(part, planned);
}

// A part of a compound.
void ActionRunner::run_with_function(ir::ActionPart part, const PlannedAction& planned) {
  run({ir::Action(part), planned.step, planned.last_backward});
}

void ActionRunner::run_part(ir::ActionPart part, bool last_backward) {
  switch (part.kind()) {
    case ActionKind::kIdle:
    case ActionKind::kOverlapFB:
      return;
    case ActionKind::kForward:
      return forward(part);
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      return backward(part, last_backward);
    case ActionKind::kBackwardWeight:
      return backward_weight(part, last_backward);
    case ActionKind::kUnshard: {
      Local& stage = local(part.stage());
      if (stage.residency != Residency::kSharded)
        throw ContractError("the stage is unsharded already");
      stage.with.data_parallel->unshard();
      stage.residency = Residency::kUnsharding;
      return;
    }
    case ActionKind::kReshard: {
      Local& stage = local(part.stage());
      if (stage.residency == Residency::kSharded) throw ContractError("the stage is not unsharded");
      need_unsharded(stage, part);
      stage.with.data_parallel->reshard();
      stage.residency = Residency::kSharded;
      return;
    }
    case ActionKind::kReduceGrad: {
      Local& stage = local(part.stage());
      stage.with.data_parallel->reduce_grad();
      stage.reduces = true;
      return;
    }
    case ActionKind::kSendF: {
      Slot& slot = slot_of(part);
      if (!slot.outputs)
        throw ContractError("there is no output of " + text_of(ActionKind::kForward, part));
      return transfers(part).post_send(part, take(slot.outputs));
    }
    case ActionKind::kSendB: {
      Slot& slot = slot_of(part);
      if (!slot.input_grads)
        throw ContractError("there is no gradient of " + text_of(ActionKind::kBackward, part));
      return transfers(part).post_send(part, take(slot.input_grads));
    }
    case ActionKind::kRecvF:
    case ActionKind::kRecvB:
      local(part.stage());
      return transfers(part).post_receive(part);
  }
}

void ActionRunner::forward(ir::ActionPart part) {
  Local& stage = local(part.stage());
  Slot& slot = slot_of(part);
  if (slot.phase != Phase::kNothing)
    throw ContractError(text_of(ActionKind::kForward, part) + " ran already in this step");
  need_unsharded(stage, part);
  Tensors inputs = inputs_of(part, slot);
  slot.num_inputs = inputs.size();
  for (const at::Tensor& extra : microbatch_of(microbatches_.extra, part.microbatch()))
    inputs.push_back(extra.detach());
  Tensors outputs = stage.with.stage->forward(part.microbatch(), inputs);
  slot.phase = with_backward_ ? Phase::kForward : Phase::kDone;
  use_outputs(part, slot, std::move(outputs));
}

Tensors ActionRunner::inputs_of(ir::ActionPart part, Slot& slot) {
  if (is_first(part.stage())) {
    Tensors inputs;
    for (const at::Tensor& input : microbatch_of(microbatches_.inputs, part.microbatch()))
      inputs.push_back(input.detach());
    return inputs;
  }
  if (is_local(part.stage() - 1)) {
    if (!slot.inputs) {
      throw ContractError(
          "`" +
          ir::to_string(ir::Action(ActionKind::kForward, part.stage() - 1, part.microbatch())) +
          "`, whose output it needs, has not run");
    }
    return take(slot.inputs);
  }
  return transfers(part).wait_receive({ActionKind::kRecvF, part.stage(), part.microbatch()});
}

// Hands them to whoever needs them; the graph stays with the stage.
void ActionRunner::use_outputs(ir::ActionPart part, Slot& slot, Tensors outputs) {
  if (!is_last(part.stage())) {
    Tensors leaves = hand_over(outputs);
    if (is_local(part.stage() + 1))
      local(part.stage() + 1).slots[static_cast<size_t>(part.microbatch())].inputs =
          std::move(leaves);
    else
      slot.outputs = std::move(leaves);
    return;
  }
  compute_loss(part, slot, outputs);
  if (!keep_outputs_) return;
  Tensors& kept = results_.outputs[static_cast<size_t>(part.microbatch())];
  for (const at::Tensor& output : outputs) kept.push_back(output.detach());
}

void ActionRunner::compute_loss(ir::ActionPart part, Slot& slot, const Tensors& outputs) {
  // Without targets an evaluation has no loss.
  if (!options_.loss || (!with_backward_ && microbatches_.targets.empty())) return;
  Tensors leaves = hand_over(outputs);
  const at::Tensor loss =
      options_.loss(leaves, microbatch_of(microbatches_.targets, part.microbatch()));
  if (!loss.defined() || loss.numel() != 1) {
    throw std::invalid_argument(
        "the loss is " + (loss.defined() ? to_string(meta_of(loss)) : std::string("undefined")) +
        ": wanted one number");
  }
  results_.losses[static_cast<size_t>(part.microbatch())] = loss.detach();
  if (!with_backward_) return;
  const auto needs_grad = [](const at::Tensor& leaf) { return leaf.requires_grad(); };
  if (!loss.requires_grad() && std::ranges::any_of(leaves, needs_grad))
    throw std::invalid_argument(
        "the loss does not depend on the outputs, or was detached from them");
  slot.loss = loss;
  slot.loss_inputs = std::move(leaves);
}

void ActionRunner::backward(ir::ActionPart part, bool last_backward) {
  Local& stage = local(part.stage());
  Slot& slot = slot_of(part);
  if (slot.phase != Phase::kForward) {
    throw ContractError(slot.phase == Phase::kNothing
                            ? text_of(ActionKind::kForward, part) + " has not run"
                            : "the backward of this microbatch ran already");
  }
  need_unsharded(stage, part);
  const bool whole = part.kind() == ActionKind::kBackward;
  const bool reduces = whole && last_backward;
  // A loss may add to gradients of the stage's weights too, which are not the last ones.
  const bool has_loss = is_last(part.stage());
  stage.with.data_parallel->before_backward(part.microbatch(), reduces && !has_loss);
  Tensors output_grads = output_grads_of(part, slot);
  if (reduces && has_loss) stage.with.data_parallel->before_backward(part.microbatch(), true);
  Stage& compute = *stage.with.stage;
  Tensors grads = whole ? compute.backward(part.microbatch(), std::move(output_grads))
                        : compute.backward_input(part.microbatch(), std::move(output_grads));
  slot.phase = whole ? Phase::kDone : Phase::kInput;
  if (is_first(part.stage())) return;
  grads.resize(slot.num_inputs);
  if (is_local(part.stage() - 1))
    local(part.stage() - 1).slots[static_cast<size_t>(part.microbatch())].output_grads =
        std::move(grads);
  else
    slot.input_grads = std::move(grads);
}

Tensors ActionRunner::output_grads_of(ir::ActionPart part, Slot& slot) {
  if (is_last(part.stage())) {
    if (!slot.loss.defined()) throw ContractError("there is no loss function");
    // The one place where gradients are scaled.
    const double scale = options_.scale_grads ? 1.0 / num_microbatches_ : 1.0;
    autograd::full_backward({autograd::root_of(slot.loss)}, {at::full_like(slot.loss, scale)});
    slot.loss.reset();
    return autograd::take_grads(std::exchange(slot.loss_inputs, {}));
  }
  if (is_local(part.stage() + 1)) {
    if (!slot.output_grads) {
      throw ContractError(
          "`" +
          ir::to_string(ir::Action(ActionKind::kBackward, part.stage() + 1, part.microbatch())) +
          "`, whose gradient it needs, has not run");
    }
    return take(slot.output_grads);
  }
  return transfers(part).wait_receive({ActionKind::kRecvB, part.stage(), part.microbatch()});
}

void ActionRunner::backward_weight(ir::ActionPart part, bool last_backward) {
  Local& stage = local(part.stage());
  Slot& slot = slot_of(part);
  if (slot.phase != Phase::kInput) {
    throw ContractError(slot.phase == Phase::kDone
                            ? "the backward of this microbatch is done already"
                            : text_of(ActionKind::kBackwardInput, part) + " has not run");
  }
  if (!options_.weight_free_w || stage.residency == Residency::kUnsharding)
    need_unsharded(stage, part);
  if (stage.residency == Residency::kSharded && stage.with.data_parallel->frees_parameters()) {
    // Its I is a whole chain of weights, the embedding's too.
    if (is_first(part.stage()))
      throw ContractError("a W of stage 0 needs the stage unsharded, and it is resharded");
    stage.with.stage->check_weight_free(part.microbatch());
  }
  stage.with.data_parallel->before_backward(part.microbatch(), last_backward);
  stage.with.stage->backward_weight(part.microbatch());
  slot.phase = Phase::kDone;
}

void ActionRunner::need_unsharded(Local& stage, ir::ActionPart part) {
  if (stage.residency == Residency::kSharded)
    throw ContractError("stage " + std::to_string(part.stage()) + " is not unsharded");
  if (stage.residency == Residency::kUnsharding) stage.with.data_parallel->wait_unshard();
  stage.residency = Residency::kUnsharded;
}

Transfers& ActionRunner::transfers(ir::ActionPart part) {
  if (!transfers_)
    throw ContractError("stage " + std::to_string(part.stage()) +
                        " has a neighbour on no rank of this program");
  return *transfers_;
}

}  // namespace pipewright::executor
