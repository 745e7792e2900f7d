#include "pipewright/fsdp/call_tracker.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string>
#include <utility>

#include "pipewright/autograd/hooks.h"
#include "pipewright/autograd/node_pointer.h"
#include "pipewright/ir/errors.h"

namespace pipewright::fsdp {

namespace {

// Forwards without a backward that are remembered. A backward through an older one reduces at its
// end, in the order of the tree.
constexpr size_t kRemembered = 256;

}  // namespace

void ForwardHistory::Forward::unit_ended(ShardedUnit& unit) {
  ended.push_back(&unit);
  is_passed.push_back(false);
}

std::optional<size_t> ForwardHistory::Forward::pass(const ShardedUnit& unit) {
  for (size_t place = ended.size(); place-- > 0;) {
    if (ended[place] != &unit || is_passed[place]) continue;
    is_passed[place] = true;
    return place;
  }
  return std::nullopt;
}

ForwardHistory::Calls ForwardHistory::Forward::calls_of(const ShardedUnit& unit) const {
  const auto found = calls.find(&unit);
  return found == calls.end() ? Calls{} : found->second;
}

void ForwardHistory::begin(bool trains) {
  std::erase_if(forwards_, [](const Forward& forward) { return forward.has_backward; });
  while (forwards_.size() >= kRemembered) forwards_.pop_front();
  ++number_;
  previous_ = std::exchange(order_, {});
  follows_previous_ = true;
  trains_ = trains;
  if (trains) forwards_.emplace_back().number = number_;
}

ForwardHistory::Forward* ForwardHistory::find(int64_t number) {
  const auto found = std::ranges::find(forwards_, number, &Forward::number);
  return found == forwards_.end() ? nullptr : &*found;
}

ShardedUnit* ForwardHistory::next_after(ShardedUnit& unit) {
  if (prefetched_ == &unit) prefetched_ = nullptr;
  const size_t place = order_.size();
  order_.push_back(&unit);
  follows_previous_ = follows_previous_ && place < previous_.size() && previous_[place] == &unit;
  return follows_previous_ && place + 1 < previous_.size() ? previous_[place + 1] : nullptr;
}

// After a failed step, ranks may have stopped at different places of a forward: whoever followed
// its own would prefetch other units than the others. prefetched_ stays: that unit is still to be
// freed.
void ForwardHistory::clear() {
  forwards_.clear();
  trains_ = false;
  previous_.clear();
  order_.clear();
  follows_previous_ = false;
}

// Detects where a call's backward begins and ends. LibTorch's modules have no hooks, so hooks are
// installed on the graph: a tensor hook on each output runs when the output's gradient arrives, and
// an extra node between the inputs and the call runs when the gradients of all inputs have been
// computed, which is after everything in the call that leads to an input.
//
// A call whose inputs require no gradient has no such node, and no event marks its end identically
// on all ranks: the last gradient of a parameter does not, because ranks may use different
// parameters. Such a call ends with the whole backward.

namespace {

// The node on a call's inputs; runs when the call's backward is done.
class InputGrads final : public torch::autograd::Node {
 public:
  InputGrads(std::weak_ptr<CallListener> listener, std::shared_ptr<Call> call)
      : listener_(std::move(listener)), call_(std::move(call)) {}
  std::string name() const override { return "FullyShardInputs"; }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    if (const auto listener = listener_.lock()) listener->backward_leaves(call_);
    return std::move(grads);
  }

 private:
  const std::weak_ptr<CallListener> listener_;
  const std::shared_ptr<Call> call_;
};

// The graph of a view to which the result of another graph has been written: no gradient flows to
// what was there before. Its base's node leads to it.
class Overwritten final : public torch::autograd::Node {
 public:
  Overwritten(const at::Tensor& view, torch::autograd::Edge written) {
    add_input_metadata(view);
    // rebase_history() replaces the first one. It updates the view's own node only if nobody has
    // asked for that node since the write.
    set_next_edges({torch::autograd::Edge(), std::move(written)});
  }
  std::string name() const override { return "FullyShardOverwritten"; }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    return {at::zeros_like(grads[0]), grads[0]};
  }
};

}  // namespace

Tensors hook_inputs(const Tensors& inputs, const std::shared_ptr<Call>& call,
                    const std::weak_ptr<CallListener>& listener) {
  Tensors differentiable;
  for (const at::Tensor& input : inputs) {
    if (input.defined() && input.requires_grad()) differentiable.push_back(input);
  }
  if (differentiable.empty()) return inputs;
  call->has_input_grads = true;
  const auto node = autograd::make_node<InputGrads>(listener, call);
  node->set_next_edges(torch::autograd::collect_next_edges(differentiable));
  Tensors hooked = inputs;
  for (at::Tensor& input : hooked) {
    if (!input.defined() || !input.requires_grad()) continue;
    input = input.detach();
    torch::autograd::create_gradient_edge(input, node);
  }
  return hooked;
}

void adopt_writes(const Tensors& inputs, const Tensors& hooked_inputs,
                  const std::shared_ptr<Call>& call, const std::weak_ptr<CallListener>& listener) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor &input = inputs[i], &hooked = hooked_inputs[i];
    if (!input.defined() || input.is_same(hooked) || !hooked.requires_grad() ||
        dynamic_cast<const InputGrads*>(hooked.grad_fn().get()))
      continue;
    torch::autograd::check_inplace(input, /*requires_grad=*/true);
    torch::autograd::Edge edge = torch::autograd::impl::gradient_edge(hooked);
    if (input.is_view()) edge = {autograd::make_node<Overwritten>(input, std::move(edge)), 0};
    torch::autograd::impl::rebase_history(input, std::move(edge));
    hook_outputs({input}, call, listener);
  }
}

void share_memory(Tensors& outputs, const Tensors& inputs, const Tensors& hooked_inputs) {
  for (at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const at::Tensor& hooked = hooked_inputs[i];
      if (inputs[i].is_same(hooked) || !hooked.is_alias_of(output) ||
          hooked.dtype() != output.dtype())
        continue;
      const auto edge = torch::autograd::impl::gradient_edge(output);
      output = inputs[i].as_strided(output.sizes(), output.strides(), output.storage_offset());
      torch::autograd::impl::set_gradient_edge(output, edge);
      break;
    }
  }
}

void hook_outputs(const Tensors& outputs, const std::shared_ptr<Call>& call,
                  const std::weak_ptr<CallListener>& listener) {
  for (const at::Tensor& output : outputs) {
    if (!output.defined()) continue;
    autograd::on_backward_of(output, [listener, call] {
      const auto alive = listener.lock();
      if (!alive) {
        throw ContractError(
            "fully_shard: backward through a module whose unit no longer exists; keep what "
            "fully_shard returned until backward has run");
      }
      alive->backward_enters(call);
    });
  }
}

CallTracker::Running::Running(CallTracker& calls, const torch::nn::Module* module)
    : calls_(calls), before_(std::exchange(calls.running_, module)) {}

bool CallTracker::has_run(const torch::nn::Module* module) {
  if (left_to_run_.empty()) left_to_run_.insert(modules_.begin(), modules_.end());
  left_to_run_.erase(module);
  return left_to_run_.empty();
}

void CallTracker::note_call(bool with_grad, bool has_parts, bool recomputes) {
  if (!recomputes) {
    has_plain_call_ = has_plain_call_ || with_grad;
    if (!with_grad) ++checkpointed_calls_;
  }
  if (has_parts || checkpointed_calls_ + (has_plain_call_ ? 1 : 0) > 1)
    may_come_in_portions_ = true;
}

void Pass::enter(Call& call, int64_t backward) {
  if (call.entered_in == backward && call.left_in != backward) return;  // through another output
  comes_again_ = comes_again_ || done_;
  call.entered_in = backward;
  call.entered_by = torch::autograd::get_current_graph_task_id();
  call.left_in = 0;
  ++open_;
}

void Pass::leave(Call& call, int64_t backward) {
  if (call.entered_in != backward || call.left_in == backward) return;
  // A checkpointed part that captures a tensor of the call reaches the call's inputs in a backward
  // of its own, inside of the one that has the rest of the call before it.
  if (call.entered_by != torch::autograd::get_current_graph_task_id()) return;
  call.left_in = backward;
  --open_;
  ++left_;
}

bool Pass::has_left(const ForwardHistory::Calls& calls) const {
  return open_ == 0 && calls.without_end + recomputed_.without_end == 0 &&
         recomputed_.with_end >= calls.checkpointed &&
         left_ == calls.with_end + recomputed_.with_end;
}

}  // namespace pipewright::fsdp
