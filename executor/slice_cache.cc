#include "pipewright/executor/slice_cache.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <string>
#include <utility>

#include "pipewright/autograd/node_pointer.h"
#include "pipewright/autograd/outside_writes.h"
#include "pipewright/autograd/split_backward.h"
#include "pipewright/ir/errors.h"

namespace pipewright::executor {
namespace {

std::string name_of(size_t result, int microbatch, int64_t slice) {
  return "result " + std::to_string(result) + " of slice " + std::to_string(slice) +
         " of microbatch " + std::to_string(microbatch);
}

}  // namespace

// It also accumulates gradients for other nodes, so it belongs to I, where slices have an order.
class SliceCache::ExtendNode final : public autograd::HidesWeights {
 public:
  ExtendNode(std::shared_ptr<State> state, size_t result, int64_t dim)
      : state_(std::move(state)),
        result_(result),
        dim_(dim),
        microbatch_(state_->microbatch),
        slice_(state_->slice) {}

  std::string name() const override { return "SliceCache"; }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    const c10::NoGradGuard no_grad;
    auto& kept_of = state_->results[result_];
    const auto found = kept_of.find(microbatch_);
    if (found == kept_of.end())
      throw ContractError("backward of " + name_of(result_, microbatch_, slice_) +
                          ": expected it in the cache, got none");
    Kept& kept = found->second;
    kept.took_grads = true;
    const int64_t length = kept.buffer.size(dim_) / state_->slices;
    const auto own_part = [&](const at::Tensor& whole) {
      return whole.narrow(dim_, slice_ * length, length);
    };
    const at::Tensor& grad = grads[0];
    at::Tensor own;
    if (grad.defined()) own = own_part(grad);
    if (kept.grads.defined())
      own = own.defined() ? own + own_part(kept.grads) : own_part(kept.grads).clone();
    if (grad.defined() && slice_ > 0) {
      const at::Tensor earlier = grad.narrow(dim_, 0, slice_ * length);
      const bool is_first = !kept.grads.defined();
      if (is_first) kept.grads = at::empty_like(kept.buffer);
      at::Tensor sum = kept.grads.narrow(dim_, 0, slice_ * length);
      is_first ? sum.copy_(earlier) : sum.add_(earlier);
    }
    return {own};
  }

 private:
  const std::shared_ptr<State> state_;
  const size_t result_;
  const int64_t dim_;
  const int microbatch_, slice_;
};

SliceCache::SliceCache() : state_(std::make_shared<State>()) {}

size_t SliceCache::add() {
  state_->results.emplace_back();
  return state_->results.size() - 1;
}

at::Tensor SliceCache::extend(size_t result, const at::Tensor& slice, int64_t dim) {
  State& state = *state_;
  if (state.slices == 1 || state.phase == Phase::kNone) return slice;
  const std::string name = name_of(result, state.microbatch, state.slice);
  if (dim < 0) dim += slice.dim();
  Kept& kept = state.results.at(result)[state.microbatch];
  const int64_t length = slice.size(dim);
  std::vector<int64_t> sizes = slice.sizes().vec();
  sizes[static_cast<size_t>(dim)] *= state.slices;
  if (kept.filled == 0) {
    kept.buffer = at::empty(sizes, slice.options().requires_grad(false));
  } else if (kept.buffer.sizes() != at::IntArrayRef(sizes)) {
    throw ContractError(name + ": expected the shape of the slices before it, got another");
  }
  // A recomputation finds its slice in the cache.
  const bool is_next = state.phase == Phase::kForward && kept.filled == state.slice;
  const bool is_again = state.phase == Phase::kBackward && kept.filled > state.slice;
  if (!is_next && !is_again)
    throw ContractError(name + ": expected one call of extend() per forward, got a second one");
  if (is_next) {
    const c10::NoGradGuard no_grad;
    const autograd::RecordsWrites unrecorded(false);  // a checkpoint need not undo it
    kept.buffer.narrow(dim, state.slice * length, length).copy_(slice);
    ++kept.filled;
  }
  // With a version of its own: later slices write elsewhere into the buffer that graphs have saved.
  at::Tensor extended = kept.buffer.narrow(dim, 0, (state.slice + 1) * length).variable_data();
  if (c10::GradMode::is_enabled() && slice.requires_grad()) {
    const auto node = autograd::make_node<ExtendNode>(state_, result, dim);
    node->set_next_edges(torch::autograd::collect_next_edges(slice));
    torch::autograd::create_gradient_edge(extended, node);
  }
  return extended;
}

int64_t SliceCache::index() const {
  state_->is_used = true;
  return state_->phase == Phase::kNone ? 0 : state_->slice;
}

void SliceCache::begin(Phase phase, int unit) {
  State& state = *state_;
  state.phase = phase;
  state.microbatch = unit / state.slices;
  state.slice = unit % state.slices;
  state.is_used = false;
  if (state.slices == 1) return;
  for (size_t result = 0; result < state.results.size(); ++result) {
    const Kept& kept = state.results[result][state.microbatch];
    const int found = phase == Phase::kForward ? kept.filled : state.slices - 1 - kept.ended;
    if (found == state.slice) continue;
    throw ContractError((phase == Phase::kForward ? "forward of " : "backward of ") +
                        name_of(result, state.microbatch, state.slice) +
                        ": expected that of slice " + std::to_string(found));
  }
}

void SliceCache::end(bool keeps) {
  State& state = *state_;
  const Phase phase = std::exchange(state.phase, Phase::kNone);
  if (state.slices == 1) return;
  if (phase == Phase::kForward && state.results.empty() && !state.is_used)
    throw ContractError(
        "expected modules that extend the SliceCache of their stage, or read its index(), got "
        "none; a stage that computes each position without the others has no cache");
  const bool is_last = phase == Phase::kForward && state.slice + 1 == state.slices;
  const bool is_first = phase == Phase::kBackward && state.slice == 0;
  for (size_t result = 0; result < state.results.size(); ++result) {
    auto& kept_of = state.results[result];
    Kept& kept = kept_of[state.microbatch];
    const std::string name = name_of(result, state.microbatch, state.slice);
    if (phase == Phase::kForward && kept.filled != state.slice + 1)
      throw ContractError(name + ": expected the forward to extend it, which it has not");
    if (phase == Phase::kBackward) {
      ++kept.ended;
      if (!std::exchange(kept.took_grads, false) && kept.grads.defined())
        throw ContractError(name +
                            ": expected its gradient to come back, as later slices have one for "
                            "it, got none");
    }
    if (is_first || (is_last && !keeps)) kept_of.erase(state.microbatch);
  }
}

void SliceCache::set_slices(int slices) {
  state_->slices = slices;
  clear();
}

void SliceCache::clear() {
  state_->phase = Phase::kNone;
  for (auto& kept_of : state_->results) kept_of.clear();
}

}  // namespace pipewright::executor
