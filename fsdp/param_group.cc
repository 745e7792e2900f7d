#include "pipewright/fsdp/param_group.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "pipewright/fsdp/shard_layout.h"

namespace pipewright::fsdp {
namespace {

// Where parameters begin in a buffer: at multiples of so many bytes, which backends and kernels
// like.
constexpr int64_t kAlignment = 64;

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

void free_storage(const at::Tensor& tensor) {
  c10::StorageImpl* storage = storage_of(tensor);
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, tensor.device()));
  storage->set_nbytes(0);
}

void fill_storage(const at::Tensor& tensor, int64_t bytes) {
  const c10::OptionalDeviceGuard guard(tensor.device());  // where allocators allocate
  c10::StorageImpl* storage = storage_of(tensor);
  storage->set_data_ptr_noswap(storage->allocator()->allocate(static_cast<size_t>(bytes)));
  storage->set_nbytes(static_cast<size_t>(bytes));
}

int64_t numel_of(at::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

std::string describe(const at::Tensor& tensor) {
  return c10::str(tensor.scalar_type(), " ", tensor.sizes(), " on ", tensor.device());
}

}  // namespace

const char* to_string(ShardState state) {
  switch (state) {
    case ShardState::kSharded:
      return "sharded";
    case ShardState::kShardedPostForward:
      return "sharded behind forward";
    case ShardState::kUnsharded:
      return "unsharded";
  }
  return "";
}

ParamGroup::ParamGroup(std::vector<ParamSpec> specs, comms::BackendPtr group,
                       comms::BackendPtr post_forward, std::string unit_name)
    : group_(std::move(group)),
      post_forward_(std::move(post_forward)),
      unit_(std::move(unit_name)) {
  if (specs.empty()) return;
  const c10::NoGradGuard no_grad;
  options_ = specs[0].parameter.options().requires_grad(false);
  const int64_t aligned = kAlignment / static_cast<int64_t>(specs[0].parameter.element_size());
  for (ParamSpec& spec : specs) {
    Parameter parameter;
    parameter.name = std::move(spec.name);
    parameter.registered = spec.parameter;
    parameter.trainable = spec.parameter.requires_grad();
    parameter.dim = spec.dim;
    parameter.sizes = spec.parameter.sizes().vec();
    const int64_t length = parameter.sizes[static_cast<size_t>(parameter.dim)];
    const int64_t numel = numel_of(parameter.sizes);
    parameter.chunk_numel = length == 0 ? 0 : numel / length * chunk_length(length, ranks());
    parameter.offset = whole_numel_;
    parameter.chunk_offset = chunk_numel_;
    const auto next = [&](int64_t size) { return (size + aligned - 1) / aligned * aligned; };
    whole_numel_ += next(parameter.chunk_numel * ranks());
    chunk_numel_ += next(parameter.chunk_numel);
    if (parameter.trainable) {
      parameter.grad_offset = grad_numel_;
      parameter.grad_chunk_offset = grad_chunk_numel_;
      grad_numel_ += next(parameter.chunk_numel * ranks());
      grad_chunk_numel_ += next(parameter.chunk_numel);
    }
    parameters_.push_back(std::move(parameter));
  }
  if (ranks() == 1) return;  // the registered tensors are shard and whole in one
  const at::Tensor shards = at::zeros({chunk_numel_}, options_);
  wholes_ = at::empty({whole_numel_}, options_);
  for (Parameter& parameter : parameters_) {
    std::vector<int64_t> sizes = parameter.sizes;
    int64_t& length = sizes[static_cast<size_t>(parameter.dim)];
    const Chunk chunk = chunk_of(length, ranks(), group_->getRank());
    length = chunk.length;
    parameter.padded_shard = alias(shards, parameter.chunk_offset, {parameter.chunk_numel});
    parameter.shard = alias(shards, parameter.chunk_offset, sizes);
    parameter.shard.copy_(
        parameter.registered.detach().narrow(parameter.dim, chunk.begin, chunk.length));
    if (parameter.dim == 0)
      parameter.gathered = alias(wholes_, parameter.offset, {parameter.chunk_numel * ranks()});
    parameter.whole = alias(wholes_, parameter.offset, parameter.sizes);
    parameter.registered.set_data(parameter.shard);
  }
  free_storage(wholes_);
}

// Shares memory, and is no view to autograd: what is done to it in place is its own affair.
at::Tensor ParamGroup::alias(const at::Tensor& flat, int64_t offset, at::IntArrayRef sizes) const {
  at::Tensor tensor = at::empty({0}, options_);
  tensor.set_(flat.storage(), flat.storage_offset() + offset, sizes);
  return tensor;
}

// Throws if a parameter does not hold what was put there.
void ParamGroup::expect(const Parameter& parameter, const at::Tensor& held) const {
  const at::Tensor& found = parameter.registered;
  if (found.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() == storage_of(held) &&
      found.storage_offset() == held.storage_offset() && found.sizes() == held.sizes() &&
      found.scalar_type() == held.scalar_type())
    return;
  throw std::logic_error(c10::str(
      "fully_shard: parameter `", parameter.name, "` of ", unit_, ", which is ", to_string(state_),
      ", was replaced: found ", describe(found), ", wanted the ", describe(held),
      " that was put there; cast, move and load before fully_shard, and "
      "write to parameters in place"));
}

bool ParamGroup::begin_unshard() {
  if (state_ == ShardState::kUnsharded || is_gathering() || parameters_.empty()) return false;
  const c10::NoGradGuard no_grad;
  if (ranks() == 1) {
    state_ = ShardState::kUnsharded;
    return false;
  }
  const bool smaller = state_ == ShardState::kShardedPostForward;
  for (const Parameter& parameter : parameters_)
    expect(parameter, smaller ? parameter.post_forward_shard : parameter.shard);
  if (abandoned_gather_) {
    // It may still write there.
    try {
      std::exchange(abandoned_gather_, nullptr)->wait();
    } catch (const std::exception&) {  // the step that it belonged to has failed for it
    }
  }
  fill_storage(wholes_, whole_numel_ * static_cast<int64_t>(options_.dtype().itemsize()));
  std::vector<at::Tensor> inputs, outputs;
  for (Parameter& parameter : parameters_) {
    if (parameter.chunk_numel == 0) continue;
    if (parameter.dim != 0)
      parameter.gathered = at::empty({parameter.chunk_numel * ranks()}, options_);
    inputs.push_back(smaller ? parameter.post_forward_flat : parameter.padded_shard);
    outputs.push_back(parameter.gathered);
  }
  try {
    if (!inputs.empty()) {
      gather_work_ =
          (smaller ? post_forward_ : group_)->allgather_into_tensor_coalesced(outputs, inputs);
    }
  } catch (...) {
    free_storage(wholes_);
    throw;
  }
  gather_begun_ = true;
  return true;
}

bool ParamGroup::wait_unshard() {
  if (!gather_begun_) return false;
  const c10::NoGradGuard no_grad;
  gather_begun_ = false;
  if (gather_work_) std::exchange(gather_work_, nullptr)->wait();
  const bool smaller = state_ == ShardState::kShardedPostForward;
  for (Parameter& parameter : parameters_) {
    expect(parameter, smaller ? parameter.post_forward_shard : parameter.shard);
    if (parameter.dim != 0 && parameter.chunk_numel > 0) {
      // One piece for each rank, side by side along the dimension.
      const int64_t pieces = smaller ? post_forward_->getSize() : ranks();
      std::vector<int64_t> sizes = parameter.sizes;
      sizes[static_cast<size_t>(parameter.dim)] /= pieces;
      sizes.insert(sizes.begin(), pieces);
      at::cat_out(parameter.whole, parameter.gathered.view(sizes).unbind(0), parameter.dim);
      bytes_copied_ += static_cast<int64_t>(parameter.whole.nbytes());
      parameter.gathered.reset();
    }
  }
  for (Parameter& parameter : parameters_) {
    parameter.registered.set_data(parameter.whole);
    parameter.post_forward_flat.reset();
    parameter.post_forward_shard.reset();
  }
  state_ = ShardState::kUnsharded;
  return true;
}

void ParamGroup::make_post_forward_shards() {
  const int64_t pieces = post_forward_->getSize(), piece = post_forward_->getRank();
  for (Parameter& parameter : parameters_) {
    if (parameter.dim == 0) {
      const int64_t numel = parameter.gathered.numel() / pieces;
      parameter.post_forward_flat = parameter.gathered.narrow(0, piece * numel, numel).clone();
    } else {
      const int64_t length = parameter.sizes[static_cast<size_t>(parameter.dim)] / pieces;
      parameter.post_forward_flat = parameter.whole.narrow(parameter.dim, piece * length, length)
                                        .contiguous()
                                        .clone()
                                        .view(-1);
    }
    bytes_copied_ += static_cast<int64_t>(parameter.post_forward_flat.nbytes());
    // Without the padding, which is at the end.
    std::vector<int64_t> sizes = parameter.sizes;
    int64_t& length = sizes[static_cast<size_t>(parameter.dim)];
    const int64_t each = chunk_length(length, ranks()) * ranks() / pieces;
    length = std::clamp<int64_t>(length - piece * each, 0, each);
    parameter.post_forward_shard = alias(parameter.post_forward_flat, 0, sizes);
  }
}

void ParamGroup::reshard(bool post_forward) {
  if (is_gathering()) wait_unshard();
  if (state_ == ShardState::kSharded) return;
  const c10::NoGradGuard no_grad;
  if (state_ == ShardState::kShardedPostForward && post_forward) return;
  if (ranks() == 1) {
    state_ = ShardState::kSharded;
    return;
  }
  for (const Parameter& parameter : parameters_) {
    expect(parameter,
           state_ == ShardState::kUnsharded ? parameter.whole : parameter.post_forward_shard);
  }
  if (post_forward) make_post_forward_shards();
  for (Parameter& parameter : parameters_)
    parameter.registered.set_data(post_forward ? parameter.post_forward_shard : parameter.shard);
  if (state_ == ShardState::kUnsharded) free_storage(wholes_);
  if (!post_forward) {
    for (Parameter& parameter : parameters_) {
      parameter.post_forward_flat.reset();
      parameter.post_forward_shard.reset();
    }
  }
  state_ = post_forward ? ShardState::kShardedPostForward : ShardState::kSharded;
}

at::Tensor ParamGroup::grad_place(const Parameter& parameter) const {
  return alias(grads_, parameter.grad_offset, parameter.sizes);
}

void ParamGroup::allocate_grads() {
  if (!grads_.defined()) grads_ = at::empty({grad_numel_}, options_);
}

void ParamGroup::grad_comes(size_t i) {
  if (is_direct()) return;
  Parameter& parameter = parameters_[i];
  at::Tensor& grad = parameter.registered.mutable_grad();
  if (!parameter.adding) parameter.shard_grad = grad;
  parameter.adding = true;
  if (!parameter.grad.defined() && state_ != ShardState::kUnsharded) {
    // A W on a resharded stage: autograd would make a gradient like the shard.
    allocate_grads();
    parameter.grad = grad_place(parameter).zero_();
  }
  grad = parameter.grad;
}

void ParamGroup::grad_ready(size_t i) {
  if (is_direct()) return;
  Parameter& parameter = parameters_[i];
  at::Tensor& grad = parameter.registered.mutable_grad();
  at::Tensor added = std::exchange(grad, std::exchange(parameter.shard_grad, {}));
  parameter.adding = false;
  if (!added.defined()) return;
  if (added.layout() != at::kStrided) {
    throw std::runtime_error(c10::str("fully_shard: parameter `", parameter.name, "` of ", unit_,
                                      " has a gradient that is ", added.layout(),
                                      ": only dense ones are reduced"));
  }
  if (parameter.grad.defined() && added.is_same(parameter.grad)) return;
  const c10::NoGradGuard no_grad;
  allocate_grads();
  if (!parameter.grad.defined()) parameter.grad = grad_place(parameter);
  parameter.grad.copy_(added);
  bytes_copied_ += static_cast<int64_t>(added.nbytes());
}

void ParamGroup::forget_backward() {
  for (Parameter& parameter : parameters_) {
    if (!std::exchange(parameter.adding, false)) continue;
    parameter.registered.mutable_grad() = std::exchange(parameter.shard_grad, {});
  }
}

bool ParamGroup::has_grads() const { return grads_.defined(); }

void ParamGroup::begin_reduce() {
  if (is_direct()) return;
  if (std::ranges::none_of(parameters_, &Parameter::trainable)) return;
  const c10::NoGradGuard no_grad;
  allocate_grads();
  Reducing reducing;
  reducing.post = reduction_.post;
  std::vector<at::Tensor> inputs, outputs;
  // Behind the gradients: for each parameter, whether it was used. Each rank gets a copy.
  const auto count = static_cast<int64_t>(parameters_.size());
  at::Tensor flags = at::zeros({count}, at::TensorOptions(at::kFloat));
  reducing.output = ranks() == 1 ? grads_ : at::empty({grad_chunk_numel_ + count}, options_);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    reducing.used.push_back(parameter.grad.defined());
    flags[static_cast<int64_t>(i)] = parameter.grad.defined() ? 1 : 0;
    if (!parameter.trainable || parameter.chunk_numel == 0) continue;
    const at::Tensor padded =
        grads_.narrow(0, parameter.grad_offset, parameter.chunk_numel * ranks());
    const int64_t numel = numel_of(parameter.sizes);
    padded.narrow(0, numel, padded.numel() - numel).zero_();
    if (!parameter.grad.defined()) padded.zero_();
    if (ranks() == 1) continue;
    at::Tensor input = padded;
    if (parameter.dim != 0) {
      input = at::stack(grad_place(parameter).chunk(ranks(), parameter.dim)).view(-1);
      bytes_copied_ += static_cast<int64_t>(input.nbytes());
      reducing.pieces.push_back(input);
    }
    if (reduction_.pre != 1) input.div_(reduction_.pre);
    inputs.push_back(input);
    outputs.push_back(
        reducing.output.narrow(0, parameter.grad_chunk_offset, parameter.chunk_numel));
  }
  if (ranks() > 1) {
    inputs.push_back(flags.to(options_).repeat({ranks()}));
    outputs.push_back(reducing.output.narrow(0, grad_chunk_numel_, count));
    c10d::ReduceScatterOptions options;
    options.reduceOp =
        reduction_.op == ReduceOp::kAverage ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
    reducing.pieces.push_back(inputs.back());
    reducing.work = group_->reduce_scatter_tensor_coalesced(outputs, inputs, options);
  }
  reducing.input = std::exchange(grads_, {});
  for (Parameter& parameter : parameters_) parameter.grad.reset();
  reducing_.push_back(std::move(reducing));
}

void ParamGroup::wait_reduce() {
  if (reducing_.empty()) return;
  const c10::NoGradGuard no_grad;
  const Reducing reducing = std::move(reducing_.front());
  reducing_.pop_front();
  if (reducing.work) reducing.work->wait();
  if (reducing.post != 1) {
    reducing.output.narrow(0, 0, grad_chunk_numel_).div_(reducing.post);
  }
  at::Tensor flags;  // read only if this rank does not know it by itself
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    if (!parameter.trainable) continue;
    if (!reducing.used[i]) {
      if (ranks() == 1) continue;
      if (!flags.defined()) {
        flags =
            reducing.output.narrow(0, grad_chunk_numel_, static_cast<int64_t>(parameters_.size()))
                .to(at::TensorOptions(at::kDouble).device(at::kCPU));
      }
      if (flags[static_cast<int64_t>(i)].item<double>() == 0) continue;
    }
    const at::Tensor shard_grad =
        alias(reducing.output, parameter.grad_chunk_offset,
              ranks() == 1 ? at::IntArrayRef(parameter.sizes) : parameter.shard.sizes());
    at::Tensor& grad = parameter.registered.mutable_grad();
    if (grad.defined())
      grad.add_(shard_grad);
    else
      grad = shard_grad;
  }
}

void ParamGroup::abort() {
  if (parameters_.empty()) return;
  group_->abort();
  if (std::exchange(gather_begun_, false)) abandoned_gather_ = std::exchange(gather_work_, nullptr);
  reshard();
}

void ParamGroup::abandon() {
  forget_backward();
  reducing_.clear();
  grads_.reset();
  for (Parameter& parameter : parameters_) parameter.grad.reset();
}

}  // namespace pipewright::fsdp
