#ifndef PIPEWRIGHT_FSDP_SHARD_GUARD_H_
#define PIPEWRIGHT_FSDP_SHARD_GUARD_H_

#include <ATen/core/Tensor.h>

#include <string>

// A mark on tensors that hold a shard of a parameter. An operator that reads such a tensor together
// with a tensor of another shape throws ContractError naming the parameter, in training and in
// evaluation. Without it, a Linear outside its unit computes some of its outputs, and an Embedding
// returns wrong rows, silently. Optimizers, clipping, saving and printing work on shards.
//
// The mark is a dispatch key that LibTorch does not use. Not noticed: functions of one tensor, such
// as the sum of a shard, and tensors of the shard's own shape. Thread-safe.

namespace pipewright::fsdp {

// A tensor in the memory of `shard`, with the mark. `name` is for messages.
at::Tensor guarded(const at::Tensor& shard, const std::string& name);
// Renames it and all tensors in its memory.
void name_shard(const at::Tensor& shard, const std::string& name);
bool is_guarded(const at::Tensor& tensor);

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_SHARD_GUARD_H_
