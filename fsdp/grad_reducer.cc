// Gradients are accumulated in the buffer that is reduced. Full gradients are stored in one flat
// buffer with the layout of the gathered parameters (param_group.cc), which is the input of the
// reduce-scatter. A hook takes each gradient before autograd accumulates it: the first one of a
// parameter is copied into the buffer, later ones are added there, so that at most one gradient
// exists outside of it, and sums over microbatches are in the dtype of the buffer. The output holds
// one piece per parameter, which becomes the .grad of its shard, or is added to the .grad that
// exists.
//
// Ranks may use different parameters, and must post the same collectives: each reduction sends the
// full buffer, and one flag per parameter that tells whether any rank used it.
//
// Time is linear in the elements of the group. Memory is one full buffer per pending reduction, and
// one for the backward that accumulates.
#include "pipewright/fsdp/grad_reducer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "pipewright/comms/group.h"
#include "pipewright/fsdp/flat_buffer.h"
#include "pipewright/ir/errors.h"

namespace pipewright::fsdp {

GradReducer::GradReducer(const ParamGroup& params, comms::BackendPtr replicas)
    : params_(params), replicas_(std::move(replicas)) {
  lay_out();
}

void GradReducer::lay_out() {
  if (has_grads() || partial_.defined()) {
    throw ContractError(
        "fully_shard: parameters of " + params_.unit_name() +
        " were cast, moved, frozen or unfrozen while their gradients were accumulated: reduce the "
        "gradients first");
  }
  slots_.assign(params_.params().size(), {});
  numel_ = chunk_numel_ = 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const ShardedParam& param = params_.params()[i];
    if (!param.trainable) continue;
    const auto element_size = static_cast<int64_t>(params_.reduce_options().dtype().itemsize());
    slots_[i].offset = numel_;
    slots_[i].chunk_offset = chunk_numel_;
    numel_ += aligned_numel(param.chunk_numel * params_.ranks(), element_size);
    chunk_numel_ += aligned_numel(param.chunk_numel, element_size);
  }
}

at::Tensor GradReducer::place_of(size_t i) const {
  return alias_of(grads_, slots_[i].offset, params_.params()[i].sizes);
}

void GradReducer::allocate() {
  if (!grads_.defined()) grads_ = empty_flat(numel_, params_.reduce_options(), params_.allocator());
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
  allocate();
  Slot& slot = slots_[i];
  if (slot.grad.defined()) {
    slot.grad.add_(grad);
  } else {
    slot.grad = place_of(i);
    slot.grad.copy_(grad);
    bytes_copied_ += static_cast<int64_t>(grad.nbytes());
  }
  return {};
}

void GradReducer::begin_reduce(bool all_reduces) {
  if (is_direct()) return;
  if (std::ranges::none_of(params_.params(), &ShardedParam::trainable)) return;
  const c10::NoGradGuard no_grad;
  allocate();
  const int ranks = params_.ranks();
  Pending pending;
  pending.divisor = reduction_.post;
  pending.all_reduces = all_reduces;
  std::vector<at::Tensor> inputs, outputs;
  // After the gradients: for each parameter, whether it was used. Each rank gets a copy. They are
  // written on the device: a copy of pageable host memory would make the host wait for it.
  const auto count = static_cast<int64_t>(slots_.size());
  at::Tensor flags;
  if (communicates()) flags = at::ones({ranks, count}, params_.reduce_options());
  pending.output = communicates() ? empty_flat(chunk_numel_ + count, params_.reduce_options(),
                                               params_.allocator())
                                  : grads_;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    const ShardedParam& param = params_.params()[i];
    pending.used.push_back(slot.grad.defined());
    if (flags.defined() && !slot.grad.defined()) flags.select(1, static_cast<int64_t>(i)).zero_();
    if (!param.trainable || param.chunk_numel == 0) continue;
    const at::Tensor padded = grads_.narrow(0, slot.offset, param.chunk_numel * ranks);
    const int64_t numel = numel_of(param.sizes);
    padded.narrow(0, numel, padded.numel() - numel).zero_();
    if (!slot.grad.defined()) padded.zero_();
    if (!communicates()) continue;
    at::Tensor input = padded;
    if (param.dim != 0 && ranks > 1) {
      const std::vector<at::Tensor> parts = place_of(i).chunk(ranks, param.dim);
      std::vector<int64_t> sizes = parts[0].sizes().vec();
      sizes.insert(sizes.begin(), ranks);
      input = empty_flat(padded.numel(), padded.options(), params_.allocator());
      at::Tensor stacked = input.view(sizes);
      at::stack_out(stacked, parts);
      bytes_copied_ += static_cast<int64_t>(input.nbytes());
      pending.pieces.push_back(input);
    }
    if (reduction_.pre != 1) input.div_(reduction_.pre);
    inputs.push_back(input);
    outputs.push_back(pending.output.narrow(0, slot.chunk_offset, param.chunk_numel));
  }
  if (communicates()) {
    inputs.push_back(flags.view(-1));
    outputs.push_back(pending.output.narrow(0, chunk_numel_, count));
  }
  if (communicates() && ranks == 1) {
    for (size_t i = 0; i < inputs.size(); ++i) outputs[i].copy_(inputs[i]);
  } else if (ranks > 1) {
    c10d::ReduceScatterOptions scatter;
    scatter.reduceOp =
        reduction_.op == modules::ReduceOp::kAverage ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
    pending.pieces.push_back(inputs.back());
    pending.work = params_.group()->reduce_scatter_tensor_coalesced(outputs, inputs, scatter);
  }
  pending.input = std::exchange(grads_, {});
  for (Slot& slot : slots_) slot.grad.reset();
  pending_.push_back(std::move(pending));
}

// Reduces the output over the replicas, together with the partial sum of earlier ones; or adds it
// to that sum, and returns false.
bool GradReducer::all_reduce(Pending& pending) {
  if (partial_.defined()) {
    pending.output.add_(std::exchange(partial_, {}));
    for (size_t i = 0; i < partial_used_.size(); ++i)
      pending.used[i] = pending.used[i] || partial_used_[i];
  }
  if (!pending.all_reduces) {
    partial_ = pending.output;
    partial_used_ = pending.used;
    return false;
  }
  c10d::AllreduceOptions options;
  options.reduceOp =
      reduction_.across == modules::ReduceOp::kAverage ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
  std::vector<at::Tensor> outputs = {pending.output};
  comms::wait(*replicas_, *replicas_->allreduce(outputs, options));
  return true;
}

void GradReducer::wait_reduce() {
  if (pending_.empty()) return;
  const c10::NoGradGuard no_grad;
  Pending pending = std::move(pending_.front());
  pending_.pop_front();
  if (pending.work) comms::wait(*params_.group(), *pending.work);
  pending.input.reset();
  pending.pieces.clear();
  if (replicas() > 1 && !all_reduce(pending)) return;
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
  for (Slot& slot : slots_) slot.grad.reset();
  pending_.clear();
  grads_.reset();
  partial_.reset();
}

void GradReducer::abort() {
  if (replicas_) replicas_->abort();
}

}  // namespace pipewright::fsdp
