#include "pipewright/executor/data_flow.h"

#include <ATen/ops/full_like.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "pipewright/comms/device_event.h"
#include "pipewright/ir/errors.h"
#include "pipewright/ir/text/action_text.h"

namespace pipewright::executor {

using ir::ActionKind;

namespace {

std::string quoted(ActionKind kind, int stage, int microbatch) {
  return "`" + ir::to_string(ir::Action(kind, stage, microbatch)) + "`";
}

// Returns leaves that share the memory of `tensors`, for the graph of another stage.
Tensors hand_over(const Tensors& tensors) {
  Tensors leaves;
  leaves.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    at::Tensor& leaf = leaves.emplace_back();
    if (tensor.defined()) leaf = tensor.detach().set_requires_grad(tensor.requires_grad());
  }
  return leaves;
}

// Parts of two microbatches may run on two streams: see ActionRunner::fork().
void use(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) comms::use_on_current_stream(tensor);
  }
}

void add(Tensors& sums, size_t i, const at::Tensor& grad) {
  if (sums.size() <= i) sums.resize(i + 1);
  use({sums[i], grad});
  if (grad.defined()) sums[i] = sums[i].defined() ? sums[i] + grad : grad;
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

DataFlow::DataFlow(const ir::Placement& placement, int num_microbatches, int rank,
                   Transfers* transfers, Options options)
    : placement_(placement),
      num_microbatches_(num_microbatches),
      rank_(rank),
      transfers_(transfers),
      options_(std::move(options)) {
  for (const int stage : placement.stages_of(rank)) slots_[stage] = {};
}

void DataFlow::begin(bool with_backward, bool keep_outputs, Microbatches microbatches) {
  with_backward_ = with_backward;
  keep_outputs_ = keep_outputs;
  microbatches_ = std::move(microbatches);
  results_ = {};
  const auto count = static_cast<size_t>(num_microbatches_);
  for (auto& [stage, slots] : slots_) {
    slots.clear();
    slots.resize(count);
  }
  input_grads_.assign(count, {});
  extra_grads_.assign(count, {});
  for (const auto& [stage, list] : microbatches_.extra_of) extra_of_grads_[stage].resize(count);
  const int last = placement_.num_stages() - 1;
  if (slots_.contains(last)) {
    const int instance = placement_.instance_on(rank_, last);
    first_result_ = placement_.microbatch_of_instance(instance);
    const auto results =
        static_cast<size_t>(placement_.microbatches_of_instance(instance, num_microbatches_));
    results_.losses.resize(results);
    if (keep_outputs) results_.outputs.resize(results);
  }
  if (transfers_) transfers_->begin_step(with_backward);
}

StepOutputs DataFlow::finish() {
  if (transfers_) transfers_->finish();
  use(results_.losses);
  for (const Tensors& outputs : results_.outputs) use(outputs);
  if (with_backward_) accumulate_into_batch();
  for (auto& [stage, slots] : slots_) slots.clear();
  microbatches_ = {};
  return std::move(results_);
}

void DataFlow::accumulate_into_batch() {
  torch::autograd::edge_list roots;
  Tensors grads;
  const auto add_roots = [&](const std::vector<Tensors>& of_batch, std::vector<Tensors>& sums) {
    for (size_t m = 0; m < sums.size(); ++m) {
      for (size_t i = 0; i < sums[m].size(); ++i) {
        if (!sums[m][i].defined()) continue;
        use({sums[m][i]});
        roots.push_back(autograd::root_of(of_batch[m][i]));
        grads.push_back(std::move(sums[m][i]));
      }
    }
  };
  add_roots(microbatches_.inputs, input_grads_);
  add_roots(microbatches_.extra, extra_grads_);
  for (auto& [stage, sums] : extra_of_grads_) add_roots(microbatches_.extra_of[stage], sums);
  extra_of_grads_.clear();
  // No node is this step's own: the caller may use their graph further.
  autograd::full_backward(roots, grads, autograd::NodeRange());
}

void DataFlow::clear() {
  for (auto& [stage, slots] : slots_) slots.clear();
  microbatches_ = {};
  input_grads_.clear();
  extra_grads_.clear();
  extra_of_grads_.clear();
  results_ = {};
}

DataFlow::Slot& DataFlow::slot(int stage, int microbatch) {
  const auto found = slots_.find(stage);
  if (found == slots_.end())
    throw ContractError("stage " + std::to_string(stage) + " is not on this rank");
  return found->second[static_cast<size_t>(microbatch)];
}

Tensors DataFlow::inputs(ir::ActionPart part) {
  Tensors inputs = stage_inputs(part);
  slot(part).num_inputs = inputs.size();
  const auto add_extra = [&](const std::vector<Tensors>& list) {
    const Tensors extra = leaves_of(microbatch_of(list, part.microbatch()));
    inputs.insert(inputs.end(), extra.begin(), extra.end());
  };
  add_extra(microbatches_.extra);
  const auto own = microbatches_.extra_of.find(part.stage());
  if (own != microbatches_.extra_of.end()) add_extra(own->second);
  use(inputs);
  if (options_.lock) options_.lock->lock();
  return inputs;
}

Tensors DataFlow::leaves_of(const Tensors& tensors) const {
  if (with_backward_) return hand_over(tensors);
  Tensors leaves;
  for (const at::Tensor& tensor : tensors)
    leaves.push_back(tensor.defined() ? tensor.detach() : tensor);
  return leaves;
}

Tensors DataFlow::stage_inputs(ir::ActionPart part) {
  const int stage = part.stage(), microbatch = part.microbatch();
  if (is_first(stage)) return leaves_of(microbatch_of(microbatches_.inputs, microbatch));
  if (is_local(stage - 1, microbatch)) {
    std::optional<Tensors>& inputs = slot(part).inputs;
    if (!inputs) {
      throw ContractError("needs the output of " +
                          quoted(ActionKind::kForward, stage - 1, microbatch) +
                          ", which has not run");
    }
    return take(inputs);
  }
  return transfers(part).wait_receive({ActionKind::kRecvF, stage, microbatch});
}

void DataFlow::put_outputs(ir::ActionPart part, Stage& stage, const Tensors& outputs) {
  if (!is_last(part.stage())) {
    const int next = part.stage() + 1, microbatch = part.microbatch();
    std::optional<Tensors>& to =
        is_local(next, microbatch) ? slot(next, microbatch).inputs : slot(part).outputs;
    to = hand_over(outputs);
    return;
  }
  compute_loss(part, stage, outputs);
  if (!keep_outputs_) return;
  Tensors& kept = results_.outputs[static_cast<size_t>(part.microbatch() - first_result_)];
  for (const at::Tensor& output : outputs)
    kept.push_back(output.defined() ? output.detach() : output);
}

void DataFlow::compute_loss(ir::ActionPart part, Stage& stage, const Tensors& outputs) {
  // Only an evaluation may lack the targets of its loss.
  if (!options_.loss || (options_.loss.takes_targets() && microbatches_.targets.empty())) return;
  const bool joined = !with_backward_ || stage.joins_loss();
  Tensors leaves = joined ? Tensors() : hand_over(outputs);
  Tensors results = joined ? outputs : Tensors();
  for (const at::Tensor& leaf : leaves) results.push_back(autograd::as_result(leaf));
  autograd::NodeRange nodes;
  const at::Tensor loss =
      options_.loss(results, microbatch_of(microbatches_.targets, part.microbatch()));
  nodes.end();
  if (!loss.defined() || loss.numel() != 1) {
    throw std::invalid_argument(
        "expected a loss with one element, got " +
        (loss.defined() ? to_string(meta_of(loss)) : std::string("an undefined tensor")));
  }
  // A view may be of a parameter that RESHARD frees.
  at::Tensor& kept = results_.losses[static_cast<size_t>(part.microbatch() - first_result_)];
  kept = loss.is_view() ? loss.detach().clone() : loss.detach();
  if (!with_backward_) return;
  if (!loss.requires_grad()) {
    const auto needs_grad = [](const at::Tensor& output) {
      return output.defined() && output.requires_grad();
    };
    throw std::invalid_argument(
        std::ranges::any_of(outputs, needs_grad)
            ? "the loss does not depend on the outputs, or was detached from them"
            : "expected a loss that requires a gradient, got one without: all parameters that it "
              "depends on are frozen, or were used without grad mode");
  }
  // Gradients are scaled here and nowhere else.
  const double scale = options_.scale_grads ? 1.0 / num_microbatches_ : 1.0;
  std::optional<Tensors>& grads = slot(part).output_grads;
  grads = {at::full_like(loss, scale)};
  if (joined)
    stage.set_loss(part.microbatch(), loss);
  else
    slot(part).loss = {autograd::root_of(loss), std::move(leaves), nodes};
}

Tensors DataFlow::output_grads(ir::ActionPart part) {
  Tensors grads = stage_output_grads(part);
  use(grads);
  return grads;
}

Tensors DataFlow::stage_output_grads(ir::ActionPart part) {
  const int stage = part.stage(), microbatch = part.microbatch();
  if (!is_last(stage) && !is_local(stage + 1, microbatch))
    return transfers(part).wait_receive({ActionKind::kRecvB, stage, microbatch});
  std::optional<Tensors>& grads = slot(part).output_grads;
  if (!grads) {
    throw ContractError(is_last(stage) ? "a backward needs a loss function, got none"
                                       : "needs the gradient of " +
                                             quoted(ActionKind::kBackward, stage + 1, microbatch) +
                                             ", which has not run");
  }
  std::optional<Loss> loss = std::exchange(slot(part).loss, std::nullopt);
  if (!loss) return take(grads);
  if (options_.lock) options_.lock->unlock();
  autograd::full_backward({loss->root}, take(grads), loss->nodes);
  return autograd::take_grads(loss->inputs);
}

void DataFlow::put_input_grads(ir::ActionPart part, Tensors grads) {
  const int stage = part.stage(), microbatch = part.microbatch();
  const size_t num_inputs = slot(part).num_inputs;
  const size_t end_of_extra = num_inputs + microbatch_of(microbatches_.extra, microbatch).size();
  for (size_t i = num_inputs; i < grads.size(); ++i) {
    if (i < end_of_extra)
      add(extra_grads_[static_cast<size_t>(microbatch)], i - num_inputs, grads[i]);
    else
      add(extra_of_grads_.at(stage)[static_cast<size_t>(microbatch)], i - end_of_extra, grads[i]);
  }
  grads.resize(num_inputs);
  if (is_first(stage)) {
    for (size_t i = 0; i < grads.size(); ++i)
      add(input_grads_[static_cast<size_t>(microbatch)], i, grads[i]);
    return;
  }
  std::optional<Tensors>& to = is_local(stage - 1, microbatch)
                                   ? slot(stage - 1, microbatch).output_grads
                                   : slot(part).input_grads;
  to = std::move(grads);
}

void DataFlow::send(ir::ActionPart part) {
  const bool forward = part.kind() == ActionKind::kSendF;
  std::optional<Tensors>& tensors = forward ? slot(part).outputs : slot(part).input_grads;
  if (!tensors) {
    const ActionKind source = forward ? ActionKind::kForward : ActionKind::kBackward;
    throw ContractError(std::string(forward ? "no output" : "no gradient") + " of " +
                        quoted(source, part.stage(), part.microbatch()) + " to send");
  }
  use(*tensors);
  transfers(part).post_send(part, take(tensors));
}

void DataFlow::receive(ir::ActionPart part) {
  slot(part);  // throws if the stage is not on this rank
  transfers(part).post_receive(part);
}

void DataFlow::wait_send(ir::ActionPart part) {
  slot(part);  // throws if the stage is not on this rank
  transfers(part).wait_send(ir::awaited_by(part));
}

Transfers& DataFlow::transfers(ir::ActionPart part) const {
  if (!transfers_) {
    throw ContractError("stage " + std::to_string(part.stage()) +
                        " has no neighbor on another rank of this program");
  }
  return *transfers_;
}

}  // namespace pipewright::executor
