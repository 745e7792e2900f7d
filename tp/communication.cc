#include "pipewright/tp/communication.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "pipewright/autograd/node_pointer.h"
#include "pipewright/comms/group_collectives.h"
#include "pipewright/layout/layout.h"

namespace pipewright::tp {
namespace {

using Kind = Collective::Kind;

// The length of this rank's chunk.
int64_t length_of_mine(const Collective& collective, const comms::BackendPtr& group) {
  return layout::chunk_of(collective.length, group->getSize(), group->getRank()).length;
}

void check_chunk(const at::Tensor& x, const Collective& collective,
                 const comms::BackendPtr& group) {
  const int64_t mine = length_of_mine(collective, group);
  if (x.size(collective.dim) == mine) return;
  throw std::invalid_argument(c10::str(
      "gather along dimension ", collective.dim, ": expected ", mine, " of ", collective.length,
      " elements on rank ", group->getRank(), " of ", group->getSize(), ", got ", x.sizes()));
}

}  // namespace

PostedCollective post(const at::Tensor& x, const Collective& collective,
                      const comms::BackendPtr& group) {
  PostedCollective posted;
  posted.collective_ = collective;
  posted.group_ = group;
  switch (collective.kind) {
    case Kind::kNothing:
      posted.output_ = x;
      break;
    case Kind::kAllReduce: {
      std::vector<at::Tensor> sum = {x.clone(at::MemoryFormat::Contiguous)};
      posted.output_ = sum[0];
      posted.work_ = group->allreduce(sum);
      break;
    }
    case Kind::kAllGather:
      check_chunk(x, collective, group);
      posted.output_ = comms::gather_chunks(x, collective.dim, collective.length, *group);
      break;
    case Kind::kReduceScatter: {
      const int64_t each = layout::chunk_length(collective.length, group->getSize());
      posted.input_ = comms::padded_rows(x, collective.dim, each * group->getSize());
      std::vector<int64_t> sizes = posted.input_.sizes().vec();
      sizes[0] = each;
      posted.output_ = at::empty(sizes, x.options());
      posted.work_ = group->_reduce_scatter_base(posted.output_, posted.input_);
      break;
    }
    case Kind::kOwnChunk:
      posted.output_ = comms::chunk_of(x, collective.dim, *group).contiguous();
      break;
  }
  return posted;
}

at::Tensor PostedCollective::finish() {
  if (work_) std::exchange(work_, nullptr)->wait();
  if (collective_.kind != Kind::kReduceScatter) return output_;
  return output_.narrow(0, 0, length_of_mine(collective_, group_))
      .movedim(0, collective_.dim)
      .contiguous();
}

// Each function is a pair of plain collectives, one for forward and one for the gradient, and one
// node of the autograd graph that knows the second. Collectives run without recording a graph.

CommunicationNode::CommunicationNode(torch::autograd::edge_list next, const Collective& collective,
                                     comms::BackendPtr group)
    : collective_(collective), group_(std::move(group)) {
  set_next_edges(std::move(next));
}

std::optional<size_t> CommunicationNode::communicated() const {
  if (collective_.kind == Kind::kNothing || collective_.kind == Kind::kOwnChunk)
    return std::nullopt;
  return 0;
}

torch::autograd::variable_list CommunicationNode::apply(torch::autograd::variable_list&& grads) {
  if (!grads[0].defined()) return {at::Tensor()};
  const c10::NoGradGuard no_grad;
  return {run(grads[0], collective_, group_)};
}

namespace {

using Kind = Collective::Kind;

at::Tensor differentiable(const at::Tensor& x, const Collective& forward,
                          const Collective& backward, const comms::BackendPtr& group) {
  if (group->getSize() == 1) return x;
  at::Tensor result;
  {
    const c10::NoGradGuard no_grad;
    result = run(x.detach(), forward, group);
  }
  if (!c10::GradMode::is_enabled() || !x.requires_grad()) return result;
  torch::autograd::set_history(
      result, autograd::make_node<CommunicationNode>(torch::autograd::collect_next_edges(x),
                                                     backward, group));
  return result;
}

int64_t checked_dim(const at::Tensor& x, int64_t dim, const char* function) {
  const int64_t from_front = dim < 0 ? dim + x.dim() : dim;
  if (from_front >= 0 && from_front < x.dim()) return from_front;
  throw std::invalid_argument(
      c10::str(function, ": expected a dimension of a tensor of ", x.dim(), ", got ", dim));
}

}  // namespace

at::Tensor copy_to(const at::Tensor& x, const comms::BackendPtr& group) {
  return differentiable(x, {Kind::kNothing}, {Kind::kAllReduce}, group);
}

at::Tensor reduce_from(const at::Tensor& x, const comms::BackendPtr& group) {
  return differentiable(x, {Kind::kAllReduce}, {Kind::kNothing}, group);
}

at::Tensor gather_from(const at::Tensor& x, int64_t dim, int64_t length,
                       const comms::BackendPtr& group) {
  dim = checked_dim(x, dim, "gather_from");
  return differentiable(x, {Kind::kAllGather, dim, length}, {Kind::kOwnChunk, dim, length}, group);
}

at::Tensor scatter_to(const at::Tensor& x, int64_t dim, const comms::BackendPtr& group) {
  dim = checked_dim(x, dim, "scatter_to");
  const int64_t length = x.size(dim);
  return differentiable(x, {Kind::kOwnChunk, dim, length}, {Kind::kAllGather, dim, length}, group);
}

at::Tensor gather_partial(const at::Tensor& x, int64_t dim, int64_t length,
                          const comms::BackendPtr& group) {
  dim = checked_dim(x, dim, "gather_partial");
  return differentiable(x, {Kind::kAllGather, dim, length}, {Kind::kReduceScatter, dim, length},
                        group);
}

at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, const comms::BackendPtr& group) {
  dim = checked_dim(x, dim, "reduce_scatter");
  const int64_t length = x.size(dim);
  return differentiable(x, {Kind::kReduceScatter, dim, length}, {Kind::kAllGather, dim, length},
                        group);
}

}  // namespace pipewright::tp
