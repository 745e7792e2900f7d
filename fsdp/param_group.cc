// Parameters are gathered without copies. Full parameters are stored one after another in one flat
// buffer, each padded to a multiple of the number of ranks along dimension 0. The shard of rank r
// is then the r-th piece of the parameter's place, so the all-gather writes each parameter to its
// final place: a gathered group needs memory for one copy, not two. A parameter that is sharded
// along another dimension is gathered into a temporary buffer and copied from there.
//
// Invariant: each registered tensor uses the memory that corresponds to the group's state: the
// shard, the post-forward shard or the full parameter. It is checked before each change of state,
// because Module::to() and load() replace the memory of a parameter. The buffer's storage object is
// never replaced, only its memory is freed and allocated again, because autograd saves views of it.
//
// Each change of state takes time linear in the number of parameters, plus the all-gather.
#include "pipewright/fsdp/param_group.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "pipewright/comms/chunk.h"
#include "pipewright/fsdp/flat_buffer.h"
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
         found.scalar_type() == held.scalar_type();
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
                       comms::BackendPtr post_forward)
    : group_(std::move(group)), post_forward_(std::move(post_forward)) {
  if (specs.empty()) return;
  const c10::NoGradGuard no_grad;
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
  if (ranks() == 1) return;  // the shard of each parameter is the full parameter
  const at::TensorOptions options = params_[0].registered.options().requires_grad(false);
  const auto element_size = static_cast<int64_t>(options.dtype().itemsize());
  int64_t full_numel = 0, chunk_numel = 0;
  for (const ShardedParam& param : params_) {
    full_numel += aligned_numel(param.chunk_numel * ranks(), element_size);
    chunk_numel += aligned_numel(param.chunk_numel, element_size);
  }
  const at::Tensor shards = at::zeros({chunk_numel}, options);
  full_ = at::empty({full_numel}, options);
  full_bytes_ = full_numel * element_size;
  int64_t offset = 0, chunk_offset = 0;
  for (size_t i = 0; i < params_.size(); ++i) {
    ShardedParam& param = params_[i];
    Memory& memory = memory_[i];
    const Chunk chunk =
        chunk_of(param.sizes[static_cast<size_t>(param.dim)], ranks(), group_->getRank());
    memory.padded_shard = alias_of(shards, chunk_offset, {param.chunk_numel});
    memory.shard = alias_of(shards, chunk_offset, param.shard_sizes);
    memory.shard.copy_(param.registered.detach().narrow(param.dim, chunk.begin, chunk.length));
    if (param.dim == 0) memory.gathered = alias_of(full_, offset, {param.chunk_numel * ranks()});
    memory.full = alias_of(full_, offset, param.sizes);
    param.registered.set_data(memory.shard);
    offset += aligned_numel(param.chunk_numel * ranks(), element_size);
    chunk_offset += aligned_numel(param.chunk_numel, element_size);
  }
  free_memory(full_);
}

void ParamGroup::expect(size_t i, const at::Tensor& held) const {
  const at::Tensor& found = params_[i].registered;
  if (holds(found, held)) return;
  throw ContractError(c10::str(
      "fully_shard: parameter `", params_[i].name, "` of ", unit_, ", which is ", to_string(state_),
      ", was replaced: expected the ", describe(held), " that fully_shard put there, got ",
      describe(found),
      "; cast, move and load a module before fully_shard, and write to its parameters in place"));
}

bool ParamGroup::begin_unshard() {
  if (is_unsharded() || is_gathering() || params_.empty()) return false;
  const c10::NoGradGuard no_grad;
  if (ranks() == 1) {
    state_ = ShardState::kUnsharded;
    return false;
  }
  const bool smaller = state_ == ShardState::kShardedPostForward;
  for (size_t i = 0; i < params_.size(); ++i)
    expect(i, smaller ? memory_[i].post_forward_shard : memory_[i].shard);
  if (abandoned_gather_) {
    try {
      std::exchange(abandoned_gather_, nullptr)->wait();
    } catch (const std::exception&) {  // the failed step has reported it already
    }
  }
  allocate_memory(full_, full_bytes_);
  std::vector<at::Tensor> inputs, outputs;
  for (size_t i = 0; i < params_.size(); ++i) {
    if (params_[i].chunk_numel == 0) continue;
    Memory& memory = memory_[i];
    if (params_[i].dim != 0)
      memory.gathered = at::empty({params_[i].chunk_numel * ranks()}, full_.options());
    inputs.push_back(smaller ? memory.post_forward_flat : memory.padded_shard);
    outputs.push_back(memory.gathered);
  }
  try {
    if (!inputs.empty()) {
      gather_ =
          (smaller ? post_forward_ : group_)->allgather_into_tensor_coalesced(outputs, inputs);
    }
  } catch (...) {
    free_memory(full_);
    throw;
  }
  gather_posted_ = true;
  return true;
}

bool ParamGroup::wait_unshard() {
  if (!gather_posted_) return false;
  const c10::NoGradGuard no_grad;
  gather_posted_ = false;
  if (gather_) std::exchange(gather_, nullptr)->wait();
  const bool smaller = state_ == ShardState::kShardedPostForward;
  for (size_t i = 0; i < params_.size(); ++i) {
    const ShardedParam& param = params_[i];
    Memory& memory = memory_[i];
    expect(i, smaller ? memory.post_forward_shard : memory.shard);
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
    params_[i].registered.set_data(memory_[i].full);
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
    memory.post_forward_shard = alias_of(memory.post_forward_flat, 0, sizes);
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
  for (size_t i = 0; i < params_.size(); ++i)
    expect(i, is_unsharded() ? memory_[i].full : memory_[i].post_forward_shard);
  if (post_forward) make_post_forward_shards();
  for (size_t i = 0; i < params_.size(); ++i) {
    params_[i].registered.set_data(post_forward ? memory_[i].post_forward_shard : memory_[i].shard);
  }
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
