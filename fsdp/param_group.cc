// Parameters are gathered without copies. Full parameters are stored one after another in one flat
// buffer, each padded to a multiple of the number of ranks along dimension 0. The shard of rank r
// is then the r-th piece of the parameter's place, so the all-gather writes each parameter to its
// final place: a gathered group needs memory for one copy, not two. A parameter that is sharded
// along another dimension is gathered into a temporary buffer and copied from there.
//
// Invariant: each registered tensor uses the memory that corresponds to the group's state: the
// shard, the post-forward shard or the full parameter. Its contents are exchanged below autograd
// (TensorImpl::shallow_copy_from), which leaves its gradient accumulator, hooks, .grad and version
// alone even if dtype or device change; set_data() would drop the accumulator and with it the
// hooks, silently. Module::to() and load() do that: settle() adopts what they left. While the group
// is unsharded they cannot be adopted, so the invariant is checked before each change of state.
//
// The buffer's storage object is never replaced, only its memory is freed and allocated again,
// because autograd saves views of it.
//
// With mixed precision, shards are cast into a buffer that is gathered and freed after the gather.
//
// Each change of state takes time linear in the number of parameters, plus the all-gather.
#include "pipewright/fsdp/param_group.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "pipewright/comms/chunk.h"
#include "pipewright/fsdp/flat_buffer.h"
#include "pipewright/fsdp/shard_guard.h"
#include "pipewright/ir/errors.h"

namespace pipewright::fsdp {
namespace {

using comms::Chunk;
using comms::chunk_length;
using comms::chunk_of;

std::string describe(const at::Tensor& tensor) {
  return c10::str(tensor.scalar_type(), " ", tensor.sizes(), " on ", tensor.device());
}

// Whether `found` is the same memory as `held`, with the same shape and dtype.
bool holds(const at::Tensor& found, const at::Tensor& held) {
  return found.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
             held.storage().unsafeGetStorageImpl() &&
         found.storage_offset() == held.storage_offset() && found.sizes() == held.sizes() &&
         found.scalar_type() == held.scalar_type() && is_guarded(found) == is_guarded(held);
}

// Exchanges the contents of a registered tensor for `contents`, which this file has made.
void hold(const at::Tensor& registered, const at::Tensor& contents) {
  registered.unsafeGetTensorImpl()->shallow_copy_from(contents.getIntrusivePtr());
}

at::TensorOptions options_of(const at::Tensor& tensor) {
  return tensor.options().requires_grad(false);
}

}  // namespace

const char* to_string(ShardState state) {
  switch (state) {
    case ShardState::kSharded:
      return "sharded";
    case ShardState::kShardedPostForward:
      return "sharded over fewer ranks after forward";
    case ShardState::kUnsharded:
      return "unsharded";
  }
  return "";
}

ParamGroup::ParamGroup(std::vector<ParamSpec> specs, comms::BackendPtr group,
                       comms::BackendPtr post_forward, const modules::MixedPrecisionPolicy& policy)
    : group_(std::move(group)), post_forward_(std::move(post_forward)), policy_(policy) {
  if (specs.empty()) return;
  for (ParamSpec& spec : specs) {
    ShardedParam param;
    param.name = std::move(spec.name);
    param.registered = spec.parameter;
    param.trainable = spec.parameter.requires_grad();
    param.dim = spec.dim;
    param.sizes = spec.parameter.sizes().vec();
    const int64_t length = param.sizes[static_cast<size_t>(param.dim)];
    param.chunk_numel =
        length == 0 ? 0 : numel_of(param.sizes) / length * chunk_length(length, ranks());
    param.shard_sizes = param.sizes;
    param.shard_sizes[static_cast<size_t>(param.dim)] =
        chunk_of(length, ranks(), group_->getRank()).length;
    params_.push_back(std::move(param));
  }
  memory_.resize(params_.size());
  shards_ = ranks() > 1 || policy_.param_dtype || policy_.reduce_dtype;
  if (shards_) adopt(options_of(params_[0].registered));
}

at::TensorOptions ParamGroup::shard_options() const {
  return shards_ ? options_of(all_shards_) : options_of(params_[0].registered);
}

at::TensorOptions ParamGroup::full_options() const {
  const at::TensorOptions options = shard_options();
  return policy_.param_dtype ? options.dtype(*policy_.param_dtype) : options;
}

at::TensorOptions ParamGroup::reduce_options() const {
  const at::TensorOptions options = full_options();
  return policy_.reduce_dtype ? options.dtype(*policy_.reduce_dtype) : options;
}

void ParamGroup::set_unit_name(std::string name) {
  unit_ = std::move(name);
  if (!shards_) return;
  for (size_t i = 0; i < params_.size(); ++i) name_shard(memory_[i].shard, quoted(i));
}

std::string ParamGroup::quoted(size_t i) const {
  return "`" + params_[i].name + "`" + (unit_.empty() ? "" : " of " + unit_);
}

void ParamGroup::expect(size_t i, const at::Tensor& held) const {
  const at::Tensor& found = params_[i].registered;
  if (holds(found, held)) return;
  throw ContractError(c10::str(
      "fully_shard: parameter ", quoted(i), ", which is ", to_string(state_),
      ", was replaced: expected the ", describe(held), " that fully_shard put there, got ",
      describe(found), "; cast, move and load a module while it is sharded: call reshard() first"));
}

// Allocates shards and full parameters.
void ParamGroup::allocate(const at::TensorOptions& options) {
  const c10::InferenceMode no_inference(false);  // without it, tensors are unusable for autograd
  const auto element_size = static_cast<int64_t>(options.dtype().itemsize());
  int64_t full_numel = 0, chunk_numel = 0;
  for (const ShardedParam& param : params_) {
    full_numel += aligned_numel(param.chunk_numel * ranks(), element_size);
    chunk_numel += aligned_numel(param.chunk_numel, element_size);
  }
  all_shards_ = at::zeros({chunk_numel}, options);
  full_ = at::empty({full_numel}, full_options());
  full_bytes_ = static_cast<int64_t>(full_.nbytes());
  int64_t offset = 0, chunk_offset = 0;
  for (size_t i = 0; i < params_.size(); ++i) {
    const ShardedParam& param = params_[i];
    Memory& memory = memory_[i];
    memory = {};
    memory.chunk_offset = chunk_offset;
    memory.padded_shard = alias_of(all_shards_, chunk_offset, {param.chunk_numel});
    memory.shard = alias_of(all_shards_, chunk_offset, param.shard_sizes);
    memory.held = ranks() == 1 ? memory.shard : guarded(memory.shard, quoted(i));
    if (param.dim == 0) memory.gathered = alias_of(full_, offset, {param.chunk_numel * ranks()});
    memory.full = alias_of(full_, offset, param.sizes);
    offset += aligned_numel(param.chunk_numel * ranks(), element_size);
    chunk_offset += aligned_numel(param.chunk_numel, element_size);
  }
  free_memory(full_);
}

// This rank's part of what was found in the registered tensor: the shard, or the full parameter.
at::Tensor ParamGroup::my_part(size_t i, const at::Tensor& found) const {
  const ShardedParam& param = params_[i];
  if (found.sizes() == at::IntArrayRef(param.shard_sizes)) return found;
  if (found.sizes() != at::IntArrayRef(param.sizes)) {
    throw ContractError(c10::str("fully_shard: parameter ", quoted(i),
                                 " was replaced: expected its shard, ",
                                 at::IntArrayRef(param.shard_sizes), ", or the full parameter, ",
                                 at::IntArrayRef(param.sizes), ", got ", found.sizes()));
  }
  const Chunk chunk =
      chunk_of(param.sizes[static_cast<size_t>(param.dim)], ranks(), group_->getRank());
  return found.narrow(param.dim, chunk.begin, chunk.length);
}

// Copies the registered values into new shards, and registers these.
void ParamGroup::adopt(const at::TensorOptions& options) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;  // may be in the memory that allocate() replaces
  for (size_t i = 0; i < params_.size(); ++i)
    parts.push_back(my_part(i, params_[i].registered.detach()));
  allocate(options);
  for (size_t i = 0; i < params_.size(); ++i) memory_[i].shard.copy_(parts[i]);
  for (size_t i = 0; i < params_.size(); ++i) hold(params_[i].registered, memory_[i].held);
}

bool ParamGroup::settle() {
  if (state_ != ShardState::kSharded || is_gathering() || params_.empty()) return false;
  bool changed = false, replaced = false;
  const at::Tensor& first = params_[0].registered;
  for (size_t i = 0; i < params_.size(); ++i) {
    ShardedParam& param = params_[i];
    const at::Tensor& found = param.registered;
    if (found.scalar_type() != first.scalar_type() || found.device() != first.device()) {
      throw ContractError(c10::str("fully_shard: parameter ", quoted(i), " became ",
                                   found.scalar_type(), " on ", found.device(),
                                   ": expected the dtype and device of `", params_[0].name, "`, ",
                                   first.scalar_type(), " on ", first.device()));
    }
    changed = changed || param.trainable != found.requires_grad();
    param.trainable = found.requires_grad();
    replaced = replaced || (shards_ && !holds(found, memory_[i].held));
  }
  if (!replaced) return changed;
  const at::TensorOptions options = options_of(first);
  changed =
      changed || options.dtype() != all_shards_.dtype() || options.device() != all_shards_.device();
  adopt(options);
  return changed;
}

void ParamGroup::link(size_t i, const std::shared_ptr<torch::autograd::Node>& node) const {
  const at::Tensor& registered = params_[i].registered;
  const at::TensorOptions options = full_options();
  const auto& known = node->input_metadata(0);
  if (torch::autograd::impl::try_get_grad_accumulator(registered) == node &&
      known.options().dtype() == options.dtype() && known.device() == options.device() &&
      (!shards_ || known.is_same_shape(memory_[i].full)))
    return;
  torch::autograd::impl::set_grad_accumulator(registered, node);
  node->clear_input_metadata();
  node->add_input_metadata(shards_ ? memory_[i].full : registered);
  // Gradients arrive in the dtype in which they are computed.
  if (shards_) node->mutable_input_metadata(0).set_grad_dtype(std::nullopt);
}

bool ParamGroup::begin_unshard() {
  if (is_unsharded() || is_gathering() || params_.empty()) return false;
  const c10::NoGradGuard no_grad;
  if (!shards_) {
    state_ = ShardState::kUnsharded;
    return false;
  }
  const bool smaller = state_ == ShardState::kShardedPostForward;
  for (size_t i = 0; i < params_.size(); ++i)
    expect(i, smaller ? memory_[i].post_forward_shard : memory_[i].held);
  if (abandoned_gather_) {
    try {
      std::exchange(abandoned_gather_, nullptr)->wait();
    } catch (const std::exception&) {  // the failed step has reported it already
    }
  }
  allocate_memory(full_, full_bytes_);
  try {
    post_gather();
  } catch (...) {
    cast_shards_.reset();
    free_memory(full_);
    throw;
  }
  gather_posted_ = true;
  return true;
}

void ParamGroup::post_gather() {
  const bool smaller = state_ == ShardState::kShardedPostForward;
  if (!smaller && full_.dtype() != all_shards_.dtype()) {
    cast_shards_ = all_shards_.to(full_.scalar_type());
    bytes_copied_ += static_cast<int64_t>(cast_shards_.nbytes());
  }
  std::vector<at::Tensor> inputs, outputs;
  for (size_t i = 0; i < params_.size(); ++i) {
    const int64_t numel = params_[i].chunk_numel;
    if (numel == 0) continue;
    Memory& memory = memory_[i];
    if (params_[i].dim != 0) memory.gathered = at::empty({numel * ranks()}, full_.options());
    inputs.push_back(smaller                  ? memory.post_forward_flat
                     : cast_shards_.defined() ? cast_shards_.narrow(0, memory.chunk_offset, numel)
                                              : memory.padded_shard);
    outputs.push_back(memory.gathered);
  }
  if (ranks() == 1) {
    for (size_t i = 0; i < inputs.size(); ++i) outputs[i].copy_(inputs[i]);
    cast_shards_.reset();
  } else if (!inputs.empty()) {
    gather_ = (smaller ? post_forward_ : group_)->allgather_into_tensor_coalesced(outputs, inputs);
  }
}

bool ParamGroup::wait_unshard() {
  if (!gather_posted_) return false;
  const c10::NoGradGuard no_grad;
  gather_posted_ = false;
  if (gather_) std::exchange(gather_, nullptr)->wait();
  cast_shards_.reset();
  const bool smaller = state_ == ShardState::kShardedPostForward;
  for (size_t i = 0; i < params_.size(); ++i) {
    const ShardedParam& param = params_[i];
    Memory& memory = memory_[i];
    expect(i, smaller ? memory.post_forward_shard : memory.held);
    if (param.dim != 0 && param.chunk_numel > 0) {
      // One piece per rank, side by side along the dimension.
      const int64_t pieces = smaller ? post_forward_->getSize() : ranks();
      std::vector<int64_t> sizes = param.sizes;
      sizes[static_cast<size_t>(param.dim)] /= pieces;
      sizes.insert(sizes.begin(), pieces);
      at::cat_out(memory.full, memory.gathered.view(sizes).unbind(0), param.dim);
      bytes_copied_ += static_cast<int64_t>(memory.full.nbytes());
      memory.gathered.reset();
    }
  }
  for (size_t i = 0; i < params_.size(); ++i) {
    hold(params_[i].registered, memory_[i].full);
    memory_[i].post_forward_flat.reset();
    memory_[i].post_forward_shard.reset();
  }
  state_ = ShardState::kUnsharded;
  return true;
}

void ParamGroup::make_post_forward_shards() {
  const int64_t pieces = post_forward_->getSize(), piece = post_forward_->getRank();
  for (size_t i = 0; i < params_.size(); ++i) {
    const ShardedParam& param = params_[i];
    Memory& memory = memory_[i];
    const auto dim = static_cast<size_t>(param.dim);
    if (param.dim == 0) {
      const int64_t numel = memory.gathered.numel() / pieces;
      memory.post_forward_flat = memory.gathered.narrow(0, piece * numel, numel).clone();
    } else {
      const int64_t length = param.sizes[dim] / pieces;
      memory.post_forward_flat =
          memory.full.narrow(param.dim, piece * length, length).contiguous().clone().view(-1);
    }
    bytes_copied_ += static_cast<int64_t>(memory.post_forward_flat.nbytes());
    // Without the padding, which is at the end.
    std::vector<int64_t> sizes = param.sizes;
    const int64_t each = chunk_length(sizes[dim], ranks()) * ranks() / pieces;
    sizes[dim] = std::clamp<int64_t>(sizes[dim] - piece * each, 0, each);
    memory.post_forward_shard = guarded(alias_of(memory.post_forward_flat, 0, sizes), quoted(i));
  }
}

void ParamGroup::reshard(bool post_forward) {
  if (is_gathering()) wait_unshard();
  if (state_ == ShardState::kSharded) return;
  const c10::NoGradGuard no_grad;
  if (state_ == ShardState::kShardedPostForward && post_forward) return;
  if (!shards_) {
    state_ = ShardState::kSharded;
    return;
  }
  for (size_t i = 0; i < params_.size(); ++i)
    expect(i, is_unsharded() ? memory_[i].full : memory_[i].post_forward_shard);
  if (post_forward) make_post_forward_shards();
  for (size_t i = 0; i < params_.size(); ++i)
    hold(params_[i].registered, post_forward ? memory_[i].post_forward_shard : memory_[i].held);
  if (is_unsharded()) free_memory(full_);
  if (!post_forward) {
    for (Memory& memory : memory_) {
      memory.post_forward_flat.reset();
      memory.post_forward_shard.reset();
    }
  }
  state_ = post_forward ? ShardState::kShardedPostForward : ShardState::kSharded;
}

void ParamGroup::abort() {
  if (params_.empty()) return;
  group_->abort();
  if (std::exchange(gather_posted_, false)) abandoned_gather_ = std::exchange(gather_, nullptr);
  reshard();
}

}  // namespace pipewright::fsdp
