// Each function is a pair of plain collectives, one for forward and one for the gradient, and one
// node of the autograd graph that knows the second. Collectives run without recording a graph.
#include "pipewright/tp/communication.h"

#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <stdexcept>
#include <utility>

#include "pipewright/autograd/node_pointer.h"
#include "pipewright/tp/collective.h"
#include "pipewright/tp/communication_node.h"

namespace pipewright::tp {

CommunicationNode::CommunicationNode(torch::autograd::edge_list next, const Collective& collective,
                                     comms::BackendPtr group)
    : collective_(collective), group_(std::move(group)) {
  set_next_edges(std::move(next));
}

std::optional<size_t> CommunicationNode::communicated() const {
  using Kind = Collective::Kind;
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
