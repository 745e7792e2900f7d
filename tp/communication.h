#ifndef PIPEWRIGHT_TP_COMMUNICATION_H_
#define PIPEWRIGHT_TP_COMMUNICATION_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <optional>
#include <string>

#include "pipewright/autograd/split_backward.h"
#include "pipewright/comms/world.h"

// What communication.h does in forward or with a gradient, without autograd: collectives on tensors
// of which each rank has a copy, a partial sum, or its chunk along one dimension.

namespace pipewright::tp {

struct Collective {
  enum class Kind { kNothing, kAllReduce, kAllGather, kReduceScatter, kOwnChunk };
  Kind kind;
  int64_t dim = 0;     // along which there are chunks
  int64_t length = 0;  // of the whole tensor along `dim`
};

// A collective that has begun. Keep it until finish(), which is called once.
class PostedCollective {
 public:
  // The result. The current stream waits for it, as Work::wait() does.
  at::Tensor finish();

 private:
  friend PostedCollective post(const at::Tensor& x, const Collective& collective,
                               const comms::BackendPtr& group);
  at::Tensor input_, output_;  // of the backend
  Collective collective_;
  comms::BackendPtr group_;
  c10::intrusive_ptr<c10d::Work> work_;  // null if nothing is communicated
};

// Reductions are under way when this returns, an all-gather has ended. Leaves `x` as it is, and is
// to be called without grad mode. Throws std::invalid_argument for kAllGather if `x` is not this
// rank's chunk.
PostedCollective post(const at::Tensor& x, const Collective& collective,
                      const comms::BackendPtr& group);

inline at::Tensor run(const at::Tensor& x, const Collective& collective,
                      const comms::BackendPtr& group) {
  return post(x, collective, group).finish();
}

// The node of a function of communication.h in the autograd graph: a collective on the gradient.
class CommunicationNode final : public autograd::CommunicatesGrad {
 public:
  CommunicationNode(torch::autograd::edge_list next, const Collective& collective,
                    comms::BackendPtr group);

  const Collective& collective() const { return collective_; }
  const comms::BackendPtr& group() const { return group_; }
  std::optional<size_t> communicated() const override;
  std::string name() const override { return "TensorParallelBackward"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;

 private:
  const Collective collective_;
  const comms::BackendPtr group_;
};

// Communication of tensor parallelism as differentiable functions: what each does in forward, and
// with the gradient in backward. The ranks of a group hold either equal copies of a tensor, or
// partial sums of it, or chunks of it along one dimension, split as by torch.chunk
// (layout/layout.h), so that later chunks may be shorter or empty.
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
