// A .grad is the same if it has the same memory: zero_grad() detaches it, which makes another
// tensor that shares memory and version. The version tells whether anybody has written to it; only
// then are its values read, for which the host waits.
#include "pipewright/fsdp/grad_reducer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "pipewright/comms/device_event.h"
#include "pipewright/fsdp/flat_buffer.h"
#include "pipewright/ir/errors.h"

namespace pipewright::fsdp {

namespace {

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

bool is_cleared(const at::Tensor& grad) {
  const at::Tensor real = grad.is_complex() ? at::view_as_real(grad) : grad;
  return !at::logical_or(real != 0, real.signbit()).any().item<bool>();
}

}  // namespace

at::Tensor ZeroGradWatch::make_mark(int64_t numel, const at::TensorOptions& options) {
  return at::full({numel}, -0.0, options);
}

void ZeroGradWatch::begin(const at::Tensor& registered, const at::Tensor& mark) {
  at::Tensor& grad = registered.mutable_grad();
  is_mark_ = !grad.defined();
  if (is_mark_) grad = mark;
  storage_ = WeakStorage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage_of(grad)));
  version_ = grad._version();
}

ZeroGradWatch::Found ZeroGradWatch::end(const at::Tensor& registered) {
  if (!storage_) return Found::kUntouched;
  const c10::NoGradGuard no_grad;
  const WeakStorage storage = *std::exchange(storage_, std::nullopt);
  at::Tensor& grad = registered.mutable_grad();
  if (!grad.defined() || storage_of(grad) != storage._unsafe_get_target()) return Found::kCleared;
  if (grad._version() != version_) return is_cleared(grad) ? Found::kCleared : Found::kWritten;
  if (is_mark_) grad.reset();
  return Found::kUntouched;
}

// A hook takes each gradient before autograd accumulates it. The first one of a parameter is kept
// as it is if nobody else has it, and is an input of the reduce-scatter in the place where autograd
// computed it; otherwise it is copied, to the dtype in which gradients are reduced and with zeros
// up to whole chunks. Later gradients are added to the first one, so that at most one exists beside
// them. The output holds one piece per parameter, which becomes the .grad of its shard, or is added
// to the .grad that exists.
//
// Ranks may use different parameters, and must post the same collectives: each reduction sends
// zeros for a parameter that was not used, and one flag per parameter that tells whether any rank
// used it.
//
// Time is linear in the elements of the group. Memory is the full gradients of each pending
// reduction, and those of the backward that accumulates.

namespace {

// Whether nobody has a tensor or its memory but who asks. A view, such as the transposed product
// that is the gradient of a Linear's weight, itself has the tensor that it is a view of.
bool is_held_once(const at::Tensor& tensor) {
  const bool is_view = tensor.is_view();
  return tensor.use_count() == 1 && (!is_view || tensor._base().use_count() == 1) &&
         tensor.storage().use_count() == (is_view ? 2u : 1u);
}

}  // namespace

GradReducer::GradReducer(const ParamGroup& params, comms::BackendPtr replicas)
    : params_(params), replicas_(std::move(replicas)) {
  lay_out();
}

void GradReducer::lay_out() {
  backward_begins();
  if (has_grads() || partial_.defined()) {
    throw ContractError(
        "fully_shard: parameters of " + params_.unit_name() +
        " were cast, moved, frozen or unfrozen while their gradients were accumulated: reduce the "
        "gradients first");
  }
  slots_.assign(params_.params().size(), {});
  watches_.resize(slots_.size());
  chunk_numel_ = 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const ShardedParam& param = params_.params()[i];
    if (!param.trainable) continue;
    const auto element_size = static_cast<int64_t>(params_.reduce_options().dtype().itemsize());
    slots_[i].chunk_offset = chunk_numel_;
    chunk_numel_ += aligned_numel(param.chunk_numel, element_size);
  }
}

at::Tensor GradReducer::empty(int64_t numel) const {
  return empty_flat(numel, params_.reduce_options(), params_.allocator());
}

// Memory for the full gradient of a parameter; what follows the gradient is zero.
at::Tensor GradReducer::empty_padded(size_t i) const {
  const ShardedParam& param = params_.params()[i];
  const at::Tensor padded = empty(param.chunk_numel * params_.ranks());
  const int64_t numel = numel_of(param.sizes);
  padded.narrow(0, numel, padded.numel() - numel).zero_();
  return padded;
}

at::Tensor GradReducer::unpadded(size_t i, const at::Tensor& grad) const {
  return alias_of(grad, 0, params_.params()[i].sizes);
}

// Whether a gradient is fit to be reduced where it is, and nobody sees that it changes.
bool GradReducer::may_keep(size_t i, const at::Tensor& grad) const {
  const ShardedParam& param = params_.params()[i];
  const at::TensorOptions options = params_.reduce_options();
  return is_held_once(grad) && !grad.requires_grad() && grad.dtype() == options.dtype() &&
         grad.device() == options.device() && grad.is_contiguous() &&
         grad.sizes() == at::IntArrayRef(param.sizes) &&
         grad.numel() == param.chunk_numel * params_.ranks() &&
         grad.nbytes() == grad.storage().nbytes() && params_.allocator() == nullptr;
}

void GradReducer::backward_ended() {
  const bool all = partial_.defined() || !pending_.empty();
  if (!all && !has_grads_) return;
  const c10::NoGradGuard no_grad;
  at::Tensor marks;  // laid out as the output of a reduction
  for (size_t i = 0; i < slots_.size(); ++i) {
    const ShardedParam& param = params_.params()[i];
    if (!param.trainable || (!all && !slots_[i].grad.defined())) continue;
    if (!param.registered.grad().defined() && !marks.defined())
      marks = ZeroGradWatch::make_mark(chunk_numel_, params_.shard_options());
    watches_[i].begin(
        param.registered,
        marks.defined() ? alias_of(marks, slots_[i].chunk_offset, param.shard_sizes) : marks);
  }
}

void GradReducer::backward_begins() {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < watches_.size(); ++i) {
    const ShardedParam& param = params_.params()[i];
    switch (watches_[i].end(param.registered)) {
      case ZeroGradWatch::Found::kUntouched:
        break;
      case ZeroGradWatch::Found::kCleared:
        clear(i);
        break;
      case ZeroGradWatch::Found::kWritten:
        throw ContractError(
            c10::str("fully_shard: the .grad of parameter `", param.name, "` of ",
                     params_.unit_name(), " was written to while other gradients of it were not ",
                     "reduced: expected no change but zero_grad() until a backward that reduces"));
    }
  }
}

// Drops the gradients of a parameter that are not in its .grad.
void GradReducer::clear(size_t i) {
  if (slots_[i].grad.defined()) comms::use_on_current_stream(slots_[i].grad);
  slots_[i].grad.reset();
  has_grads_ = std::ranges::any_of(slots_, [](const Slot& slot) { return slot.grad.defined(); });
  if (partial_.defined()) {
    std::optional<comms::SideStream::Scope> scope;
    go_beside(&scope);
    clear(i, partial_, partial_used_);
  }
  for (Pending& pending : pending_) pending.cleared[i] = true;
}

// In the output of a reduction.
void GradReducer::clear(size_t i, const at::Tensor& output, std::vector<bool>& used) const {
  output.narrow(0, slots_[i].chunk_offset, params_.params()[i].chunk_numel).zero_();
  if (communicates()) output[chunk_numel_ + static_cast<int64_t>(i)].zero_();
  used[i] = false;
}

at::Tensor GradReducer::take(size_t i, const at::Tensor& grad) {
  const ShardedParam& param = params_.params()[i];
  if (is_direct() || !grad.defined() || !param.trainable) return grad;
  if (grad.layout() != at::kStrided) {
    throw std::runtime_error(c10::str("fully_shard: gradient of parameter `", param.name, "` of ",
                                      params_.unit_name(), ": expected a dense tensor, got ",
                                      grad.layout()));
  }
  const c10::NoGradGuard no_grad;
  has_grads_ = true;
  at::Tensor& sum = slots_[i].grad;
  if (sum.defined()) {
    unpadded(i, sum).add_(grad);
  } else if (may_keep(i, grad)) {
    sum = grad.view(-1);
  } else {
    sum = empty_padded(i);
    unpadded(i, sum).copy_(grad);
    bytes_copied_ += static_cast<int64_t>(grad.nbytes());
  }
  return {};
}

void GradReducer::begin_reduce(bool all_reduces) {
  if (is_direct()) return;
  if (std::ranges::none_of(params_.params(), &ShardedParam::trainable)) return;
  const c10::NoGradGuard no_grad;
  const int ranks = params_.ranks();
  Pending pending;
  pending.divisor = reduction_.post;
  pending.all_reduces = all_reduces;
  pending.cleared.assign(slots_.size(), false);
  std::vector<at::Tensor> outputs;
  // After the gradients: for each parameter, whether it was used. Each rank gets a copy. They are
  // written on the device: a copy of pageable host memory would make the host wait for it.
  const auto count = static_cast<int64_t>(slots_.size());
  at::Tensor flags;
  if (communicates()) flags = at::ones({ranks, count}, params_.reduce_options());
  pending.output = empty(chunk_numel_ + (communicates() ? count : 0));
  for (size_t i = 0; i < slots_.size(); ++i) {
    at::Tensor input = std::exchange(slots_[i].grad, {});
    if (input.defined()) comms::use_on_current_stream(input);
    const ShardedParam& param = params_.params()[i];
    pending.used.push_back(input.defined());
    if (flags.defined() && !input.defined()) flags.select(1, static_cast<int64_t>(i)).zero_();
    if (!param.trainable || param.chunk_numel == 0) continue;
    if (!input.defined()) input = empty_padded(i).zero_();
    if (param.dim != 0 && ranks > 1) {
      const std::vector<at::Tensor> parts = input.view(param.sizes).chunk(ranks, param.dim);
      std::vector<int64_t> sizes = parts[0].sizes().vec();
      sizes.insert(sizes.begin(), ranks);
      input = empty(input.numel());
      at::Tensor stacked = input.view(sizes);
      at::stack_out(stacked, parts);
      bytes_copied_ += static_cast<int64_t>(input.nbytes());
    }
    if (reduction_.pre != 1) input.div_(reduction_.pre);
    pending.inputs.push_back(input);
    outputs.push_back(pending.output.narrow(0, slots_[i].chunk_offset, param.chunk_numel));
  }
  if (communicates()) {
    pending.inputs.push_back(flags.view(-1));
    outputs.push_back(pending.output.narrow(0, chunk_numel_, count));
  }
  if (ranks == 1) {
    for (size_t i = 0; i < outputs.size(); ++i) outputs[i].copy_(pending.inputs[i]);
  } else {
    c10d::ReduceScatterOptions scatter;
    scatter.reduceOp =
        reduction_.op == modules::ReduceOp::kAverage ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
    pending.work =
        params_.group()->reduce_scatter_tensor_coalesced(outputs, pending.inputs, scatter);
  }
  has_grads_ = false;
  pending_.push_back(std::move(pending));
  if (goes_beside()) {
    std::optional<comms::SideStream::Scope> scope;
    go_beside(&scope);
    if (pending_.back().work) pending_.back().work->wait();
    reduce_over_replicas(pending_.back());
  }
}

bool GradReducer::goes_beside() const {
  return replicas() > 1 && !params_.reduce_options().device().is_cpu();
}

void GradReducer::go_beside(std::optional<comms::SideStream::Scope>* scope) {
  if (!goes_beside()) return;
  beside_.wait_for_current();
  scope->emplace(beside_, params_.reduce_options().device());
}

// Reduces the output over the replicas, together with the partial sum of earlier ones; or adds it
// to that sum.
void GradReducer::reduce_over_replicas(Pending& pending) {
  pending.is_posted = true;
  if (partial_.defined()) {
    pending.output.add_(partial_);
    const at::Tensor added = std::exchange(partial_, {});
    if (goes_beside()) used_beside_.push_back(added);
    for (size_t i = 0; i < partial_used_.size(); ++i)
      pending.used[i] = pending.used[i] || partial_used_[i];
  }
  if (!pending.all_reduces) {
    partial_ = pending.output;
    partial_used_ = pending.used;
    return;
  }
  c10d::AllreduceOptions options;
  options.reduceOp =
      reduction_.across == modules::ReduceOp::kAverage ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
  std::vector<at::Tensor> outputs = {pending.output};
  replicas_->allreduce(outputs, options)->wait();
}

void GradReducer::wait_reduce() {
  if (pending_.empty()) return;
  const c10::NoGradGuard no_grad;
  Pending pending = std::move(pending_.front());
  pending_.pop_front();
  if (pending.work) pending.work->wait();
  // They may be of the stream of a backward.
  for (const at::Tensor& input : pending.inputs) comms::use_on_current_stream(input);
  comms::use_on_current_stream(pending.output);
  pending.inputs.clear();
  std::optional<comms::SideStream::Scope> scope;
  go_beside(&scope);  // after what has been done to .grad
  if (scope) used_beside_.push_back(pending.output);
  for (size_t i = 0; i < slots_.size(); ++i)
    if (pending.cleared[i]) clear(i, pending.output, pending.used);
  if (replicas() > 1 && !pending.is_posted) reduce_over_replicas(pending);
  if (replicas() > 1 && !pending.all_reduces) return;
  if (hook_) hook_(pending.output.narrow(0, 0, chunk_numel_));
  if (pending.divisor != 1) pending.output.narrow(0, 0, chunk_numel_).div_(pending.divisor);
  at::Tensor reduced =
      pending.output.to(params_.shard_options().dtype().toScalarType());  // the same if it fits
  if (params_.offload()) reduced = to_host(reduced);
  at::Tensor flags;  // read only for parameters that this rank did not use: reading synchronizes
  for (size_t i = 0; i < slots_.size(); ++i) {
    const ShardedParam& param = params_.params()[i];
    if (!param.trainable) continue;
    if (!pending.used[i]) {
      if (!communicates()) continue;
      if (!flags.defined()) {
        flags = pending.output.narrow(0, chunk_numel_, static_cast<int64_t>(slots_.size()))
                    .to(at::TensorOptions(at::kDouble).device(at::kCPU));
      }
      if (flags[static_cast<int64_t>(i)].item<double>() == 0) continue;
    }
    const at::Tensor shard_grad = alias_of(reduced, slots_[i].chunk_offset, param.shard_sizes);
    at::Tensor& grad = param.registered.mutable_grad();
    if (grad.defined())
      grad.add_(shard_grad);
    else
      grad = shard_grad;
    if (const auto& hook = torch::autograd::impl::post_acc_grad_hooks(param.registered)) {
      if (params_.offload()) params_.offload()->wait();
      (*hook)(param.registered);
    }
  }
}

void GradReducer::join() {
  if (used_beside_.empty()) return;  // as without parameters, which have no device
  if (goes_beside()) {
    const c10::Device device = params_.reduce_options().device();
    if (!done_) done_.emplace(device.type());
    {
      const comms::SideStream::Scope scope(beside_, device);
      done_->record(comms::current_stream(device));
    }
    done_->block(comms::current_stream(device));
  }
  used_beside_.clear();
}

// Copies reduced gradients to the host. It waits for them only if they are to be added there.
at::Tensor GradReducer::to_host(const at::Tensor& reduced) const {
  at::Tensor copied = params_.offload()->empty_host(reduced.numel(), reduced.scalar_type());
  params_.offload()->copy(copied, reduced);
  if (std::ranges::any_of(params_.params(), [](const ShardedParam& param) {
        return param.trainable && param.registered.grad().defined();
      }))
    params_.offload()->wait();
  return copied;
}

void GradReducer::abandon() {
  for (size_t i = 0; i < watches_.size(); ++i) watches_[i].end(params_.params()[i].registered);
  for (Slot& slot : slots_) slot.grad.reset();
  has_grads_ = false;
  for (Pending& pending : pending_) used_beside_.push_back(std::move(pending.output));
  if (partial_.defined()) used_beside_.push_back(std::exchange(partial_, {}));
  join();
  pending_.clear();
}

void GradReducer::abort() {
  if (replicas_) replicas_->abort();
}

}  // namespace pipewright::fsdp
