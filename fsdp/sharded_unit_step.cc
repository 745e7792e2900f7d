// The life of a unit in one training step, if no executor drives it:
//
//   run             all-gather, forward, free (or keep, see ReshardAfterForward)
//   pre_backward    the first gradient of an output has arrived: all-gather again, and prefetch
//                   the unit that comes next in backward
//   leave_backward  backward has left its calls of one forward: free
//   post_backward   backward has left all its calls: post the reduction when it is its turn
//   end_backward    the whole backward has ended: free units that were prefetched but not used
//
// A call inside a backward is checkpointing's second forward. It gathers like any forward, but is
// not recorded in the history, because the first forward is.
//
// Invariant: what a unit posts depends only on the calls of forward() and backward() that all ranks
// share, never on which parameters a rank used or on the timing of threads. All work is linear in
// the number of parameters of the unit, and in the outermost forward also in the number of units.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <utility>

#include "pipewright/fsdp/sharded_unit.h"
#include "pipewright/ir/errors.h"

namespace pipewright::fsdp {
namespace {

// Reductions of one backward that may be pending when the next one is posted: each keeps a buffer
// of full gradients.
constexpr size_t kPendingReductions = 1;

bool is_in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

}  // namespace

// Forward.

void ShardedUnit::check_trainable() const {
  const auto trainable =
      static_cast<size_t>(std::ranges::count_if(params_.params(), [](const ShardedParam& param) {
        return param.registered.requires_grad();
      }));
  if (trainable == accumulators_.size()) return;
  throw ContractError(c10::str("fully_shard: parameters of ", display_name(),
                               " that require a gradient: expected ", accumulators_.size(),
                               " as when it was sharded, got ", trainable,
                               "; freeze and unfreeze parameters before fully_shard"));
}

void ShardedUnit::check_driven_forward() const {
  if (params_.params().empty() || is_unsharded()) return;
  throw ContractError(c10::str("fully_shard: forward of ", display_name(),
                               ": expected the executor's program to have it unsharded, got `",
                               params_.params()[0].name, "` ", to_string(params_.state())));
}

void ShardedUnit::begin_outermost_forward(const std::shared_ptr<Call>& call, bool trains) {
  drop_lost_forwards();
  forwards_.begin(call, trains);
  for_each([](ShardedUnit& unit) { unit.calls_.begin_forward(); });
}

Tensors ShardedUnit::run(const torch::nn::Module* module, const Function& function,
                         Tensors inputs) {
  std::optional<at::Device> device = options_.device;
  if (!device && !params_.params().empty()) device = params_.params()[0].registered.device();
  for (at::Tensor& input : inputs) {
    if (device && input.defined()) input = input.to(*device, /*non_blocking=*/true);
  }
  if (sync_.is_driven()) {
    check_driven_forward();
    return function(inputs);
  }
  if (calls_.is_running(module)) return function(inputs);
  const CallTracker::Running running(calls_, module);
  const bool recomputes = is_in_backward();
  check_trainable();
  unshard();
  if (!recomputes) {
    for (ShardedUnit* unit : settings_.forward_prefetch) unit->unshard_async();
  }
  const auto call = std::make_shared<Call>();
  const std::shared_ptr<ShardedUnit> outermost = root();
  ForwardHistory& history = outermost->forwards_;
  const bool with_grad = c10::GradMode::is_enabled();
  const ForwardHistory::Scope scope(history);
  // Grad mode decides in the outermost forward: within a forward that trains, a checkpointed part
  // runs with grad mode off although its backward will follow.
  if (scope.is_outermost() && !recomputes) outermost->begin_outermost_forward(call, with_grad);
  call->forward = history.number();
  if (history.trains() && !recomputes) {
    history.unit_began(*this);
    ++pending_.forwards;
  }
  if (with_grad) {
    calls_.add(call);
    inputs = hook_inputs(inputs, call, weak_from_this());
  }
  Tensors outputs = function(inputs);
  if (with_grad) hook_outputs(outputs, call, weak_from_this());
  if (recomputes) return outputs;
  if (calls_.has_run(module)) end_forward();
  // No backward will free the full parameters, and an optimizer must see shards.
  if (scope.is_outermost() && !history.trains())
    outermost->for_each([](ShardedUnit& unit) { unit.reshard(); });
  return outputs;
}

void ShardedUnit::end_forward() {
  const std::shared_ptr<ShardedUnit> outermost = root();
  if (!outermost->forwards_.trains()) return reshard();
  pending_.places.push_back(outermost->forwards_.unit_ended(*this));
  const int all = params_.ranks();
  const int ranks = settings_.reshard_after_forward
                        ? (*settings_.reshard_after_forward ? all : 1)
                        : options_.reshard_after_forward.ranks(outermost.get() == this, all);
  if (ranks > 1 || all == 1) reshard(/*post_forward=*/ranks < all);
}

void ShardedUnit::drop_lost_forwards() {
  if (forwards_.has_open_forwards() || backward_.is_running()) return;
  forwards_.clear_order();
  for_each([](ShardedUnit& unit) { unit.pending_ = {}; });
}

// Backward.

void ShardedUnit::backward_enters(const std::shared_ptr<Call>& call) {
  calls_.enter(call);
  pre_backward();
}

void ShardedUnit::pre_backward() {
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
  if (progress_.running) return;
  progress_.running = true;
  progress_.comes_again = progress_.comes_again || progress_.done;
  note(Event::kPreBackward);
  if (!pending_.places.empty()) {
    progress_.place = pending_.places.back();
    pending_.places.pop_back();
  }
  if (settings_.unshard_in_backward) unshard();
  if (settings_.backward_prefetch) {
    for (ShardedUnit* unit : *settings_.backward_prefetch) unit->unshard_async();
  } else if (outermost->options_.backward_prefetch == BackwardPrefetch::kPre) {
    prefetch_backward();
  }
}

// Prefetches the unit whose forward ended just before this unit's, unless it is already gathered or
// no longer needs its parameters for the backward of this forward.
void ShardedUnit::prefetch_backward() {
  const std::shared_ptr<ShardedUnit> outermost = root();
  ShardedUnit* target =
      progress_.place ? outermost->forwards_.ended_before(*progress_.place) : nullptr;
  if (target && (target->progress_.running || !target->settings_.unshard_in_backward ||
                 target->is_unsharded() || target->params_.is_gathering() ||
                 std::ranges::find(target->pending_.places, *progress_.place - 1) ==
                     target->pending_.places.end()))
    target = nullptr;
  if (const auto& log = outermost->options_.event_log)
    log->push_back({Event::kPrefetch, target ? target->display_name() : ""});
  if (target) target->unshard_async();
}

void ShardedUnit::after_accumulate(size_t parameter) {
  grads_.after_accumulate(parameter);
  const std::shared_ptr<ShardedUnit> outermost = root();
  if (!sync_.is_driven()) return outermost->backward_.watch();
  if (!sync_.reduces()) return;
  progress_.ready.insert(parameter);
  if (progress_.ready.size() < accumulators_.size()) return;
  progress_.done = true;
  outermost->backward_.reduce_ready();
}

void ShardedUnit::backward_leaves(const Call& call) {
  if (!progress_.running) return;
  switch (calls_.left_after(call.forward)) {
    case CallTracker::Left::kNothing:
      return post_backward();
    case CallTracker::Left::kOtherForward:
      return leave_backward();
    case CallTracker::Left::kThisForward:
      return;
  }
}

void ShardedUnit::leave_backward() {
  progress_.running = false;
  note(Event::kPostBackward);
  if (settings_.reshard_after_backward) reshard();
  if (!settings_.backward_prefetch && root()->options_.backward_prefetch == BackwardPrefetch::kPost)
    prefetch_backward();
}

void ShardedUnit::post_backward() {
  if (progress_.running) leave_backward();
  progress_.done = true;
  progress_.ready.clear();
  root()->backward_.reduce_ready();
}

void ShardedUnit::reduce() {
  if (accumulators_.empty() || !sync_.reduces()) return;
  const std::shared_ptr<ShardedUnit> outermost = root();
  // An executor runs other stages in between, so the gradients of all units exist at once anyway.
  if (!sync_.is_driven()) outermost->backward_.finish(kPendingReductions);
  grads_.begin_reduce();
  if (params_.ranks() == 1) {
    while (grads_.is_reducing()) grads_.wait_reduce();
    return;
  }
  note(Event::kReduce);
  outermost->backward_.posted(*this);
}

void ShardedUnit::wait_reduce() {
  grads_.wait_reduce();
  note(Event::kWaitReduce);
}

void ShardedUnit::end_backward() {
  if (settings_.reshard_after_backward) reshard();
  begin_backward();
  pending_.forwards = std::max(0, pending_.forwards - 1);
}

void ShardedUnit::forget() {
  grads_.abandon();
  progress_ = {};
  pending_ = {};
  calls_.clear();
  forwards_.clear();
  backward_.clear();
}

}  // namespace pipewright::fsdp
