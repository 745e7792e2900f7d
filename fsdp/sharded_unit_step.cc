// The life of a unit in one training step, if no executor drives it:
//
//   run             all-gather, and gather ahead the unit that comes next; forward; free (or keep,
//                   see ReshardAfterForward)
//   pre_backward    the first gradient of an output has arrived: all-gather again, and prefetch
//                   the unit that comes next in backward
//   backward_leaves backward has left a call; after the last one of a forward of the model: free,
//                   and post the reduction when it is its turn
//   end_backward    the whole backward has ended: free units that were prefetched but not used
//
// A call inside a backward is checkpointing's second forward. It gathers like any forward, but is
// not recorded in the history, because the first forward is.
//
// Invariant: what a unit posts depends only on the calls of forward() and backward() that all ranks
// share, and on how many there were: never on which parameters a rank used, which outputs it keeps,
// or the timing of threads. All work is linear in the number of parameters of the unit, and in the
// outermost forward also in the number of units.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/fsdp/sharded_unit.h"
#include "pipewright/ir/errors.h"

namespace pipewright::fsdp {
namespace {

// Reductions of one backward that may be pending when the next one is posted: each keeps a buffer
// of full gradients.
constexpr size_t kPendingReductions = 1;

}  // namespace

// Forward.

void ShardedUnit::check_driven_forward() const {
  if (params_.params().empty() || is_unsharded()) return;
  throw ContractError(c10::str("fully_shard: forward of ", display_name(),
                               ": expected the executor's program to have it unsharded, got `",
                               params_.params()[0].name, "` ", to_string(params_.state())));
}

Tensors ShardedUnit::run(const torch::nn::Module* module, const Function& function,
                         Tensors inputs) {
  settle();  // the parameters may have been moved
  std::optional<at::Device> device = options_.device;
  if (!device && !params_.params().empty()) device = params_.full_options().device();
  for (at::Tensor& input : inputs) {
    if (device && input.defined()) input = input.to(*device, /*non_blocking=*/true);
  }
  if (calls_.is_running(module)) return function(inputs);
  const modules::MixedPrecisionPolicy& policy = options_.mixed_precision;
  if (policy.cast_forward_inputs)
    inputs = modules::cast_floating(std::move(inputs), policy.param_dtype);
  return modules::cast_floating(run_cast(module, function, std::move(inputs)), policy.output_dtype);
}

// Whatever the modules return, the caller may keep it, also when the parameters are freed.
Tensors ShardedUnit::to_caller(Tensors outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    at::Tensor& output = outputs[i];
    if (!output.defined() || !output.has_storage()) continue;
    for_each([&](ShardedUnit& unit) {
      output = unit.params_.outlive_reshard(output);
      const std::optional<size_t> param = unit.params_.shard_with(output);
      if (!param) return;
      throw ContractError(c10::str("fully_shard: output ", i, " of ", display_name(),
                                   " is in the memory of parameter `",
                                   unit.params_.params()[*param].name, "` of ", unit.display_name(),
                                   ", of which this rank has a shard: expected the full parameter; "
                                   "return it from a forward of ",
                                   unit.display_name()));
    });
  }
  return outputs;
}

Tensors ShardedUnit::run_driven(const Function& function, const Tensors& inputs) {
  check_driven_forward();
  const std::shared_ptr<ShardedUnit> outermost = root();
  const ForwardHistory::Scope scope(outermost->forwards_);
  const bool recomputes = autograd::may_be_second_forward();
  if (scope.is_outermost() && !recomputes)
    outermost->for_each([](ShardedUnit& unit) { unit.calls_.begin_forward(); });
  const int64_t parts = autograd::checkpoint_count();
  Tensors outputs = to_caller(function(inputs));
  calls_.note_call(c10::GradMode::is_enabled(), autograd::checkpoint_count() > parts, recomputes);
  return outputs;
}

Tensors ShardedUnit::run_cast(const torch::nn::Module* module, const Function& function,
                              Tensors inputs) {
  const CallTracker::Running running(calls_, module);
  if (sync_.is_driven()) return run_driven(function, inputs);
  const bool recomputes = autograd::may_be_second_forward();
  const auto call = std::make_shared<Call>();
  const std::shared_ptr<ShardedUnit> outermost = root();
  ForwardHistory& history = outermost->forwards_;
  const bool with_grad = c10::GradMode::is_enabled();
  const ForwardHistory::Scope scope(history);
  if (scope.is_outermost() && !recomputes) outermost->model_forward_begins(/*trains=*/with_grad);
  gather();
  wait_unshard();
  if (!recomputes) gather_next();
  call->recomputes = recomputes;
  call->forward = recomputes ? outermost->backward_.forward() : history.number();
  if (history.current() && !recomputes) {
    history.current()->begun.push_back(this);
    if (autograd::is_in_first_forward()) ++history.current()->calls[this].checkpointed;
  }
  const Tensors passed = inputs;
  if (with_grad) inputs = record(inputs, call);
  Tensors outputs;
  try {
    outputs = to_caller(function(inputs));
    if (with_grad) {
      hook_outputs(outputs, call, weak_from_this());
      adopt_writes(passed, inputs, call, weak_from_this());
      share_memory(outputs, passed, inputs);
    }
  } catch (...) {
    // Other ranks may have ended this forward. Units must be gathered on all ranks or on none.
    try {
      if (!recomputes) call_ends(module, scope.is_outermost());
    } catch (const std::exception&) {  // a gather that fails too: the first error tells more
    }
    throw;
  }
  if (!recomputes) call_ends(module, scope.is_outermost());
  return outputs;
}

void ShardedUnit::call_ends(const torch::nn::Module* module, bool is_outermost) {
  if (calls_.has_run(module)) end_forward();
  if (!is_outermost) return;
  const std::shared_ptr<ShardedUnit> outermost = root();
  outermost->drop_unused_prefetch();
  // No backward will free the full parameters, and an optimizer must see shards.
  if (!outermost->forwards_.current())
    outermost->for_each([](ShardedUnit& unit) { unit.reshard(); });
}

// Called on the root. Grad mode decides in the outermost forward: within a forward that trains, a
// checkpointed part runs with grad mode off although its backward will follow.
void ShardedUnit::model_forward_begins(bool trains) {
  recover();
  drop_unused_prefetch();  // of a forward that threw
  forwards_.begin(trains);
  for_each([](ShardedUnit& unit) { unit.calls_.begin_forward(); });
  if (const auto written = std::exchange(post_optim_event_, nullptr))
    params_.order_gathers_after(*written);
  else
    params_.order_gathers();
}

// Gathers ahead what the user has set, or the unit that began after this one in the last forward.
void ShardedUnit::gather_next() {
  const std::shared_ptr<ShardedUnit> outermost = root();
  ShardedUnit* const next = outermost->forwards_.next_after(*this);
  if (!settings_.forward_prefetch.empty()) {
    for (ShardedUnit* unit : settings_.forward_prefetch) unit->gather();
  } else if (next && next->gather()) {
    outermost->forwards_.prefetched(*next);
  }
}

// A forward that did not go on like the previous one has not used what was gathered for it, and an
// optimizer must see shards.
void ShardedUnit::drop_unused_prefetch() {
  if (ShardedUnit* const unused = forwards_.take_unused()) unused->reshard();
}

// Counts a call with grad mode on, and hooks its inputs.
Tensors ShardedUnit::record(const Tensors& inputs, const std::shared_ptr<Call>& call) {
  Tensors hooked = hook_inputs(inputs, call, weak_from_this());
  if (call->recomputes)
    pass(call->forward).recompute(call->has_input_grads);
  else if (ForwardHistory::Forward* forward = root()->forwards_.current())
    forward->calls[this].add(call->has_input_grads);
  return hooked;
}

void ShardedUnit::end_forward() {
  const std::shared_ptr<ShardedUnit> outermost = root();
  ForwardHistory::Forward* forward = outermost->forwards_.current();
  if (!forward) return reshard();
  forward->unit_ended(*this);
  const int all = params_.ranks();
  const int ranks = settings_.reshard_after_forward
                        ? (*settings_.reshard_after_forward ? all : 1)
                        : options_.reshard_after_forward.ranks(outermost.get() == this, all);
  if (ranks > 1 || all == 1) reshard(/*post_forward=*/ranks < all);
}

// Backward.

Pass& ShardedUnit::pass(int64_t forward) {
  const auto found = std::ranges::find(progress_.passes, forward, &Pass::forward);
  return found == progress_.passes.end() ? progress_.passes.emplace_back(forward) : *found;
}

void ShardedUnit::backward_enters(const std::shared_ptr<Call>& call) {
  if (sync_.is_driven()) return;
  const std::shared_ptr<ShardedUnit> outermost = root();
  if (c10::GradMode::is_enabled()) {
    throw ContractError("fully_shard: a backward with create_graph through " + display_name() +
                        ": its parameters are freed before a second backward could read them");
  }
  if (outermost->forwards_.is_inside_forward()) {
    throw ContractError("fully_shard: a backward through " + display_name() +
                        " inside the forward of a unit around it; run it after that forward");
  }
  outermost->backward_.watch();
  if (!call->recomputes) outermost->backward_.enters(call->forward);
  is_unreduced_ = true;
  pass(call->forward).enter(*call, outermost->backward_.number());
  if (!std::exchange(progress_.running, true)) pre_backward(call->forward);
}

void ShardedUnit::pre_backward(int64_t forward) {
  const std::shared_ptr<ShardedUnit> outermost = root();
  note(Event::kPreBackward);
  ForwardHistory::Forward* recorded = outermost->forwards_.find(forward);
  progress_.forward = forward;
  progress_.place = recorded ? recorded->pass(*this) : std::nullopt;
  if (settings_.unshard_in_backward) {
    gather();
    wait_unshard();
  }
  if (settings_.backward_prefetch) {
    for (ShardedUnit* unit : *settings_.backward_prefetch) unit->gather();
  } else if (outermost->options_.backward_prefetch == BackwardPrefetch::kPre) {
    prefetch_backward();
  }
}

// Prefetches the unit whose forward ended just before this unit's, unless it is already gathered or
// no longer needs its parameters for the backward of this forward.
void ShardedUnit::prefetch_backward() {
  const std::shared_ptr<ShardedUnit> outermost = root();
  const ForwardHistory::Forward* forward = outermost->forwards_.find(progress_.forward);
  ShardedUnit* target = nullptr;
  if (forward && progress_.place && *progress_.place > 0 &&
      !forward->is_passed[*progress_.place - 1])
    target = forward->ended[*progress_.place - 1];
  if (target && (target->progress_.running || !target->settings_.unshard_in_backward ||
                 target->is_unsharded() || target->params_.is_gathering()))
    target = nullptr;
  if (const auto& log = outermost->event_log_)
    log->push_back({Event::kPrefetch, target ? target->display_name() : ""});
  if (target) target->gather();
}

void ShardedUnit::after_accumulate(size_t parameter) {
  const std::shared_ptr<ShardedUnit> outermost = root();
  if (!sync_.is_driven()) return outermost->backward_.watch();
  // Which gradients have arrived may differ between ranks, so it must not decide how often a unit
  // is reduced. A unit whose gradients may come in portions waits for REDUCE_GRAD.
  if (!sync_.reduces() || calls_.may_come_in_portions()) return;
  progress_.ready.insert(parameter);
  if (static_cast<int64_t>(progress_.ready.size()) <
      std::ranges::count_if(params_.params(), &ShardedParam::trainable))
    return;
  set_done(0);
  outermost->backward_.reduce_ready();
}

void ShardedUnit::backward_leaves(const std::shared_ptr<Call>& call) {
  if (!progress_.running) return;
  const std::shared_ptr<ShardedUnit> outermost = root();
  Pass& left = pass(call->forward);
  left.leave(*call, outermost->backward_.number());
  const ForwardHistory::Forward* forward = outermost->forwards_.find(call->forward);
  if (!left.has_left(forward ? forward->calls_of(*this) : ForwardHistory::Calls{})) return;
  left.set_done();
  if (std::ranges::none_of(progress_.passes, &Pass::is_open)) leave_backward();
  outermost->backward_.reduce_ready();
}

void ShardedUnit::leave_backward() {
  if (!std::exchange(progress_.running, false)) return;
  note(Event::kPostBackward);
  if (settings_.reshard_after_backward) reshard();
  if (!settings_.backward_prefetch && root()->options_.backward_prefetch == BackwardPrefetch::kPost)
    prefetch_backward();
}

void ShardedUnit::reduce() {
  if (!is_trainable() || !sync_.reduces()) return;
  is_unreduced_ = false;
  const std::shared_ptr<ShardedUnit> outermost = root();
  // An executor runs other stages in between, so the gradients of all units exist at once anyway.
  if (!sync_.is_driven()) outermost->backward_.finish(kPendingReductions);
  grads_.begin_reduce(/*all_reduces=*/sync_.is_driven() || settings_.all_reduce);
  if (!grads_.communicates()) {
    while (grads_.is_reducing()) grads_.wait_reduce();
    return;
  }
  note(Event::kReduce);
  outermost->backward_.posted(*this);
}

void ShardedUnit::reduce_rest() {
  bool comes_again = false;
  for (Pass& each : progress_.passes) comes_again = each.take_comes_again() || comes_again;
  if (comes_again || grads_.has_grads()) reduce();
}

void ShardedUnit::wait_reduce() {
  grads_.wait_reduce();
  note(Event::kWaitReduce);
}

void ShardedUnit::end_backward() {
  join_reductions();
  if (settings_.reshard_after_backward) reshard();
  begin_backward();
}

void ShardedUnit::forget() {
  grads_.abandon();
  progress_ = {};
  is_unreduced_ = false;
  forwards_.clear();
  backward_.clear();
}

}  // namespace pipewright::fsdp
