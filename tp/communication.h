#ifndef PIPEWRIGHT_TP_COMMUNICATION_H_
#define PIPEWRIGHT_TP_COMMUNICATION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "pipewright/comms/world.h"

// Communication of tensor parallelism as differentiable functions: what each does in forward, and
// with the gradient in backward. The ranks of a group hold either equal copies of a tensor, or
// partial sums of it, or chunks of it along one dimension, split as by torch.chunk (comms/chunk.h),
// so that later chunks may be shorter or empty.
//
// clang-format off
//   function         forward          backward         use
//   copy_to          -                all-reduce       before a column-parallel layer
//   reduce_from      all-reduce       -                after a row-parallel layer
//   gather_from      all-gather       own chunk        chunks -> copies
//   scatter_to       own chunk        all-gather       copies -> chunks
//   gather_partial   all-gather       reduce-scatter   chunks -> a column-parallel layer
//   reduce_scatter   reduce-scatter   all-gather       a row-parallel layer -> chunks
// clang-format on
//
// The first four are f, g and their counterparts along a dimension in Megatron-LM (Shoeybi et al.,
// "Megatron-LM", 2019), the last two those of sequence parallelism (Korthikanti et al., "Reducing
// Activation Recomputation in Large Transformer Models", 2022).
//
// All are collective over the group, forward and backward alike, unless the table says otherwise.
// Backward communicates only if `x` requires a gradient, which must be the same on all ranks. A
// split backward (autograd/split_backward.h) communicates in I, also above weights only. On one
// rank they return `x`. What copy_to returns is in the memory of `x`: do not write to it in place.
//
// `dim` may be negative; `length` is the size of the whole tensor along it.
// Errors: std::invalid_argument if there is no such dimension or `x` is not this rank's chunk;
// std::runtime_error for a failed collective.

namespace pipewright::tp {

at::Tensor copy_to(const at::Tensor& x, const comms::BackendPtr& group);
at::Tensor reduce_from(const at::Tensor& x, const comms::BackendPtr& group);
at::Tensor gather_from(const at::Tensor& x, int64_t dim, int64_t length,
                       const comms::BackendPtr& group);
at::Tensor scatter_to(const at::Tensor& x, int64_t dim, const comms::BackendPtr& group);
at::Tensor gather_partial(const at::Tensor& x, int64_t dim, int64_t length,
                          const comms::BackendPtr& group);
at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, const comms::BackendPtr& group);

}  // namespace pipewright::tp

#endif  // PIPEWRIGHT_TP_COMMUNICATION_H_
