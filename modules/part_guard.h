#ifndef PIPEWRIGHT_MODULES_PART_GUARD_H_
#define PIPEWRIGHT_MODULES_PART_GUARD_H_

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string>

// A mark on tensors that hold a part of a parameter. An operator that reads such a tensor together
// with a tensor of another shape throws ContractError naming the parameter, in training and in
// evaluation. Without it, a Linear that is called past its wrapper computes some of its outputs,
// and an Embedding returns wrong rows, silently. Optimizers, clipping, saving and printing work on
// parts.
//
// The mark is a dispatch key that LibTorch does not use. A part that is cast or moved keeps it. Not
// noticed: functions of one tensor, such as the sum of a part, and tensors of the part's own shape.
// Thread-safe.

namespace pipewright::modules {

// Whose part it is: kShard, of fully_shard, must not be read at all; kSplit, of parallelize, only
// in a MayReadParts and in backward.
enum class PartKind { kShard, kSplit };

// A tensor in the memory of `part`, with the mark, at the same place in autograd's graph. `name` is
// for messages.
at::Tensor guarded(const at::Tensor& part, PartKind kind, const std::string& name);
// Renames it and all tensors in its memory.
void name_part(const at::Tensor& part, PartKind kind, const std::string& name);
bool is_guarded(const at::Tensor& tensor);
bool is_part(const at::Tensor& tensor, PartKind kind);

// While it lives, its thread may read parts: around the forward of a module that is split.
class MayReadParts {
 public:
  MayReadParts();

 private:
  c10::impl::ExcludeDispatchKeyGuard without_key_;
};

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_PART_GUARD_H_
