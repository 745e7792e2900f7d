#include "pipewright/fsdp/param_group.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "pipewright/fsdp/flat_buffer.h"
#include "pipewright/ir/errors.h"
#include "pipewright/layout/layout.h"
#include "pipewright/modules/meta.h"
#include "pipewright/modules/part_guard.h"

namespace pipewright::fsdp {

// What a group stores, and how it adopts what users do to the parameters.
//
// Invariant: each registered tensor uses the memory that corresponds to the group's state: the
// shard, the post-forward shard or the full parameter (modules/meta.h). Module::to() and load()
// drop the gradient accumulator and with it the hooks, silently: settle() adopts what they left.
// While the group is unsharded they cannot be adopted, so the invariant is checked before each
// change of state.
//
// Parameters of one dtype are next to each other in memory. Only frozen parameters may have another
// dtype than the others.
//
// The storage object of full parameters is never replaced, only its memory is freed and allocated
// again, because autograd saves views of it.

namespace {

using layout::Chunk;
using layout::chunk_length;
using layout::chunk_of;
using modules::describe_contents;
using modules::guarded;
using modules::has_contents;
using modules::is_guarded;
using modules::PartKind;

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
                       comms::BackendPtr post_forward, const modules::MixedPrecisionPolicy& policy,
                       std::shared_ptr<OffloadCopies> offload)
    : group_(std::move(group)),
      post_forward_(std::move(post_forward)),
      policy_(policy),
      offload_(std::move(offload)) {
  if (specs.empty()) return;
  for (ParamSpec& spec : specs) {
    ShardedParam param;
    param.name = std::move(spec.name);
    param.registered = spec.parameter;
    param.trainable = spec.parameter.requires_grad();
    param.is_split = is_guarded(spec.parameter);
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
  shards_ = ranks() > 1 || policy_.param_dtype || policy_.reduce_dtype || offload_;
  if (shards_) adopt();
}

// 0 if there is none.
size_t ParamGroup::first_trainable() const {
  const auto found = std::ranges::find_if(params_, &ShardedParam::trainable);
  return found == params_.end() ? 0 : static_cast<size_t>(found - params_.begin());
}

at::TensorOptions ParamGroup::shard_options() const {
  const size_t i = first_trainable();
  return options_of(shards_ ? memory_[i].shard : params_[i].registered);
}

at::TensorOptions ParamGroup::full_options(const at::TensorOptions& shard) const {
  const at::TensorOptions options = offload_ ? shard.device(offload_->device()) : shard;
  const bool casts = policy_.param_dtype && at::isFloatingType(options.dtype().toScalarType());
  return casts ? options.dtype(*policy_.param_dtype) : options;
}

at::TensorOptions ParamGroup::full_options() const { return full_options(shard_options()); }

at::TensorOptions ParamGroup::reduce_options() const {
  const at::TensorOptions shard = shard_options();
  return full_options(shard).dtype(policy_.reduce_dtype.value_or(shard.dtype().toScalarType()));
}

void ParamGroup::set_unit_name(std::string name) {
  unit_ = std::move(name);
  if (!shards_) return;
  for (size_t i = 0; i < params_.size(); ++i) {
    modules::name_part(memory_[i].shard, PartKind::kShard, quoted(i));
    if (params_[i].is_split) modules::name_part(memory_[i].full, PartKind::kSplit, quoted(i));
  }
}

std::string ParamGroup::quoted(size_t i) const {
  return "`" + params_[i].name + "`" + (unit_.empty() ? "" : " of " + unit_);
}

void ParamGroup::expect(size_t i, const at::Tensor& held) const {
  const at::Tensor& found = params_[i].registered;
  if (has_contents(found, held)) return;
  throw ContractError(
      c10::str("fully_shard: parameter ", quoted(i), ", which is ", to_string(state_),
               ", was replaced: expected the ", describe_contents(held),
               " that fully_shard put there, got ", describe_contents(found),
               "; cast, move and load a module while it is sharded: call reshard() first"));
}

// Allocates shards and full parameters; `parts` has the dtypes and the device.
void ParamGroup::allocate(const std::vector<at::Tensor>& parts) {
  const c10::InferenceMode no_inference(false);  // without it, tensors are unusable for autograd
  allocate_flats(parts);
  std::vector<int64_t> offsets(flats_.size()), chunk_offsets(flats_.size());
  for (size_t i = 0; i < params_.size(); ++i) {
    const ShardedParam& param = params_[i];
    Memory& memory = memory_[i];
    const Flat& flat = flats_[memory.flat];
    int64_t &offset = offsets[memory.flat], &chunk_offset = chunk_offsets[memory.flat];
    memory.chunk_offset = chunk_offset;
    memory.padded_shard = alias_of(flat.shards, chunk_offset, {param.chunk_numel});
    memory.shard = alias_of(flat.shards, chunk_offset, param.shard_sizes);
    memory.held = ranks() == 1 ? memory.shard : guarded(memory.shard, PartKind::kShard, quoted(i));
    if (param.dim == 0)
      memory.gathered = alias_of(flat.full, offset, {param.chunk_numel * ranks()});
    memory.full = alias_of(flat.full, offset, param.sizes);
    if (param.is_split) memory.full = guarded(memory.full, PartKind::kSplit, quoted(i));
    const auto element_size = static_cast<int64_t>(flat.shards.element_size());
    offset += aligned_numel(param.chunk_numel * ranks(), element_size);
    chunk_offset += aligned_numel(param.chunk_numel, element_size);
  }
  free_full();
}

// One for each dtype of `parts`; memory_ says which one a parameter is in.
void ParamGroup::allocate_flats(const std::vector<at::Tensor>& parts) {
  flats_.clear();
  std::vector<at::ScalarType> dtypes;
  std::vector<int64_t> full_numels, chunk_numels;
  for (size_t i = 0; i < params_.size(); ++i) {
    const at::ScalarType dtype = parts[i].scalar_type();
    const auto found = std::ranges::find(dtypes, dtype);
    memory_[i] = {};
    memory_[i].flat = static_cast<size_t>(found - dtypes.begin());
    if (found == dtypes.end()) {
      dtypes.push_back(dtype);
      full_numels.push_back(0);
      chunk_numels.push_back(0);
    }
    const int64_t numel = params_[i].chunk_numel, element_size = parts[i].element_size();
    full_numels[memory_[i].flat] += aligned_numel(numel * ranks(), element_size);
    chunk_numels[memory_[i].flat] += aligned_numel(numel, element_size);
  }
  for (size_t f = 0; f < dtypes.size(); ++f) {
    const at::TensorOptions options = options_of(parts[0]).dtype(dtypes[f]);
    const bool on_host = offload_ && !parts[0].is_meta();
    Flat flat;
    flat.shards = on_host ? offload_->empty_host(chunk_numels[f], dtypes[f]).zero_()
                          : at::zeros({chunk_numels[f]}, options);
    flat.full = at::empty({full_numels[f]}, full_options(options));
    flat.full_bytes = static_cast<int64_t>(flat.full.nbytes());
    flats_.push_back(std::move(flat));
  }
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

void ParamGroup::put(size_t i, const at::Tensor& contents) const {
  modules::set_contents(params_[i].registered, contents);
}

// Copies the registered values into new shards, and registers these.
void ParamGroup::adopt() {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;  // may be in the memory that allocate() replaces
  for (size_t i = 0; i < params_.size(); ++i)
    parts.push_back(my_part(i, params_[i].registered.detach()));
  allocate(parts);
  for (size_t i = 0; i < params_.size(); ++i) memory_[i].shard.copy_(parts[i]);
  for (size_t i = 0; i < params_.size(); ++i) put(i, memory_[i].held);
  order_gathers();
}

bool ParamGroup::settle() {
  if (state_ != ShardState::kSharded || is_gathering() || params_.empty()) return false;
  const at::TensorOptions before = shard_options();
  bool changed = false, replaced = false;
  for (size_t i = 0; i < params_.size(); ++i) {
    ShardedParam& param = params_[i];
    const at::Tensor& found = param.registered;
    changed = changed || param.trainable != found.requires_grad();
    param.trainable = found.requires_grad();
    replaced = replaced || (shards_ && !has_contents(found, memory_[i].held));
  }
  const ShardedParam& typical = params_[first_trainable()];
  for (size_t i = 0; i < params_.size(); ++i) {
    const at::Tensor &found = params_[i].registered, &first = typical.registered;
    if (found.device() != first.device() ||
        (params_[i].trainable && found.scalar_type() != first.scalar_type())) {
      throw ContractError(c10::str("fully_shard: parameter ", quoted(i), " became ",
                                   found.scalar_type(), " on ", found.device(),
                                   ": expected the dtype and device of `", typical.name, "`, ",
                                   first.scalar_type(), " on ", first.device()));
    }
    if (offload_ && !found.is_cpu() && !found.is_meta()) {
      throw ContractError(c10::str("fully_shard: parameter ", quoted(i), " was moved: expected it ",
                                   "on the CPU, where CPUOffloadPolicy stores shards, got it on ",
                                   found.device()));
    }
  }
  if (replaced) adopt();
  const at::TensorOptions after = shard_options();
  return changed || after.dtype() != before.dtype() || after.device() != before.device();
}

void ParamGroup::link(size_t i, const autograd::NodePtr& node) const {
  const at::Tensor& registered = params_[i].registered;
  const at::TensorOptions options = full_options();  // only trainable parameters are linked
  const auto& known = node->input_metadata(0);
  if (torch::autograd::impl::try_get_grad_accumulator(registered) == node &&
      known.options().dtype() == options.dtype() && known.device() == options.device() &&
      (!shards_ || known.is_same_shape(memory_[i].full)))
    return;
  torch::autograd::impl::set_grad_accumulator(registered, autograd::WeakNodePtr(node));
  node->clear_input_metadata();
  node->add_input_metadata(shards_ ? memory_[i].full : registered);
  // Gradients arrive in the dtype in which they are computed.
  if (shards_) node->mutable_input_metadata(0).set_grad_dtype(std::nullopt);
}

}  // namespace pipewright::fsdp
