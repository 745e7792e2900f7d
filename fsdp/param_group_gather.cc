// Parameters are gathered without copies. Full parameters are stored one after another in one flat
// buffer, each padded to a multiple of the number of ranks along dimension 0. The shard of rank r
// is then the r-th piece of the parameter's place, so the all-gather writes each parameter to its
// final place: a gathered group needs memory for one copy, not two. A parameter that is sharded
// along another dimension is gathered into a temporary buffer and copied from there. With mixed
// precision or shards on the host, they are copied into a buffer that is gathered and freed after
// the gather.
//
// On a device, gathers and the memory that they write are on a stream of their own
// (param_group.h), so they overlap the computation that was issued before them. The invariant that
// makes this safe: after order_gathers(), that stream follows the current one; it is called
// whenever shards have been written, and before memory of that stream is freed that the current
// stream has used. The latter also limits how far gathers run ahead: never before the computation
// ends whose memory they may reuse.
//
// Each change of state takes time linear in the number of parameters, plus the all-gather.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "pipewright/fsdp/flat_buffer.h"
#include "pipewright/fsdp/param_group.h"
#include "pipewright/ir/errors.h"
#include "pipewright/layout/layout.h"
#include "pipewright/modules/part_guard.h"

namespace pipewright::fsdp {

using layout::chunk_length;

void ParamGroup::share_gather_stream(const ParamGroup& other) { gathers_ = other.gathers_; }

void ParamGroup::order_gathers() { gathers_->wait_for_current(); }

void ParamGroup::order_gathers_after(const c10::Event& event) { gathers_->wait_for(event); }

bool ParamGroup::begin_unshard(bool beside) {
  if (is_unsharded() || is_gathering() || params_.empty()) return false;
  const c10::NoGradGuard no_grad;
  if (params_[0].registered.is_meta()) {
    throw ContractError("fully_shard: parameter " + quoted(0) +
                        " is on the meta device: expected it to have memory; call "
                        "modules::to_empty(), then initialize or load it");
  }
  if (!shards_) {
    state_ = ShardState::kUnsharded;
    return false;
  }
  const bool smaller = state_ == ShardState::kShardedPostForward;
  for (size_t i = 0; i < params_.size(); ++i)
    expect(i, smaller ? memory_[i].post_forward_shard : memory_[i].held);
  // Without communication there is nothing to overlap.
  std::optional<comms::SideStream::Scope> scope;
  if (beside && ranks() > 1) scope.emplace(*gathers_, full_options().device());
  if (abandoned_gather_) {
    try {
      std::exchange(abandoned_gather_, nullptr)->wait();
    } catch (const std::exception&) {  // the failed step has reported it already
    }
  }
  for (const Flat& flat : flats_) allocate_memory(flat.full, flat.full_bytes, allocator());
  try {
    post_gather();
  } catch (...) {
    for (Flat& flat : flats_) flat.sent.reset();
    free_full();
    throw;
  }
  gather_posted_ = true;
  return true;
}

c10d::Backend* ParamGroup::allocator() const {
  if (!allocates_from_group_ || ranks() == 1) return nullptr;
  return group_->supportsTensorAlloc(full_options().device().index()) ? group_.get() : nullptr;
}

void ParamGroup::free_full() {
  for (const Flat& flat : flats_) free_memory(flat.full);
}

// Copies shards that are on the host, or in another dtype than to gather.
void ParamGroup::send_copies() {
  for (Flat& flat : flats_) {
    if (!offload_ && flat.full.dtype() == flat.shards.dtype()) continue;
    flat.sent = flat.shards;
    if (offload_) {
      flat.sent = at::empty_like(flat.shards, flat.shards.options().device(flat.full.device()));
      offload_->copy(flat.sent, flat.shards);
    }
    flat.sent = flat.sent.to(flat.full.scalar_type());
    bytes_copied_ += static_cast<int64_t>(flat.sent.nbytes());
  }
}

void ParamGroup::post_gather() {
  const bool smaller = state_ == ShardState::kShardedPostForward;
  if (!smaller) send_copies();
  std::vector<at::Tensor> inputs, outputs;
  for (size_t i = 0; i < params_.size(); ++i) {
    const int64_t numel = params_[i].chunk_numel;
    if (numel == 0) continue;
    Memory& memory = memory_[i];
    const Flat& flat = flats_[memory.flat];
    if (params_[i].dim != 0)
      memory.gathered = empty_flat(numel * ranks(), flat.full.options(), allocator());
    inputs.push_back(smaller               ? memory.post_forward_flat
                     : flat.sent.defined() ? flat.sent.narrow(0, memory.chunk_offset, numel)
                                           : memory.padded_shard);
    outputs.push_back(memory.gathered);
  }
  if (ranks() == 1) {
    for (size_t i = 0; i < inputs.size(); ++i) outputs[i].copy_(inputs[i]);
    for (Flat& flat : flats_) flat.sent.reset();
    return;
  }
  if (inputs.empty()) return;
  if (flats_.size() > 1) {  // backends need not know dtypes such as fp8
    for (std::vector<at::Tensor>* tensors : {&inputs, &outputs}) {
      for (at::Tensor& tensor : *tensors) tensor = tensor.view(at::kByte);
    }
  }
  gather_ = (smaller ? post_forward_ : group_)->allgather_into_tensor_coalesced(outputs, inputs);
}

bool ParamGroup::wait_unshard() {
  if (!gather_posted_) return false;
  const c10::NoGradGuard no_grad;
  gather_posted_ = false;
  if (gather_) std::exchange(gather_, nullptr)->wait();
  std::vector<at::Tensor> temporaries;  // of the gather
  for (Flat& flat : flats_) {
    if (flat.sent.defined()) temporaries.push_back(std::exchange(flat.sent, {}));
  }
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
      temporaries.push_back(std::exchange(memory.gathered, {}));
    }
  }
  if (!temporaries.empty()) order_gathers();
  for (size_t i = 0; i < params_.size(); ++i) {
    put(i, memory_[i].full);
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
    memory.post_forward_shard = modules::guarded(alias_of(memory.post_forward_flat, 0, sizes),
                                                 modules::PartKind::kShard, quoted(i));
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
    put(i, post_forward ? memory_[i].post_forward_shard : memory_[i].held);
  if (is_unsharded()) {
    order_gathers();
    free_full();
  }
  if (!post_forward) {
    for (Memory& memory : memory_) {
      memory.post_forward_flat.reset();
      memory.post_forward_shard.reset();
    }
  }
  state_ = post_forward ? ShardState::kShardedPostForward : ShardState::kSharded;
}

at::Tensor ParamGroup::outlive_reshard(const at::Tensor& output) {
  if (std::ranges::none_of(flats_, [&](const Flat& flat) { return output.is_alias_of(flat.full); }))
    return output;
  bytes_copied_ += output.numel() * static_cast<int64_t>(output.element_size());
  return output.clone();
}

std::optional<size_t> ParamGroup::shard_with(const at::Tensor& tensor) const {
  const auto in_shards = std::ranges::find_if(
      flats_, [&](const Flat& flat) { return tensor.is_alias_of(flat.shards); });
  const bool smaller = state_ == ShardState::kShardedPostForward;
  if (in_shards == flats_.end() && !smaller) return std::nullopt;
  for (size_t i = 0; i < memory_.size(); ++i) {
    if (smaller && tensor.is_alias_of(memory_[i].post_forward_flat)) return i;
    const int64_t place = tensor.storage_offset() - memory_[i].chunk_offset;
    if (memory_[i].flat == static_cast<size_t>(in_shards - flats_.begin()) && place >= 0 &&
        place < params_[i].chunk_numel)
      return i;
  }
  return std::nullopt;
}

void ParamGroup::abort() {
  if (params_.empty()) return;
  group_->abort();
  abandon();
}

void ParamGroup::abandon() {
  if (std::exchange(gather_posted_, false)) abandoned_gather_ = std::exchange(gather_, nullptr);
  reshard();
}

}  // namespace pipewright::fsdp
