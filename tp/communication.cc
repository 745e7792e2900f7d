// Each function is a pair of plain operations, one for forward and one for the gradient, and one
// node of the autograd graph that knows the second. The operations run without recording a graph.
#include "pipewright/tp/communication.h"

#include <ATen/Functions.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <memory>
#include <stdexcept>

#include "pipewright/comms/chunk.h"
#include "pipewright/comms/chunk_gather.h"
#include "pipewright/comms/group.h"

namespace pipewright::tp {
namespace {

enum class Kind { kNothing, kAllReduce, kAllGather, kReduceScatter, kOwnChunk };

// An operation on a tensor whose whole size along `dim` is `length`.
struct Operation {
  Kind kind;
  int64_t dim = 0;
  int64_t length = 0;
};

comms::Chunk own_chunk(int64_t length, c10d::Backend& group) {
  return comms::chunk_of(length, group.getSize(), group.getRank());
}

at::Tensor all_reduced(const at::Tensor& x, c10d::Backend& group) {
  std::vector<at::Tensor> sum = {x.clone(at::MemoryFormat::Contiguous)};
  comms::wait(group, *group.allreduce(sum));
  return sum[0];
}

at::Tensor gathered(const at::Tensor& x, const Operation& operation, c10d::Backend& group) {
  const int64_t mine = own_chunk(operation.length, group).length;
  if (x.size(operation.dim) != mine) {
    throw std::invalid_argument(c10::str(
        "gather along dimension ", operation.dim, ": expected ", mine, " of ", operation.length,
        " elements on rank ", group.getRank(), " of ", group.getSize(), ", got ", x.sizes()));
  }
  return comms::gather_chunks(x, operation.dim, operation.length, group);
}

at::Tensor reduce_scattered(const at::Tensor& x, const Operation& operation, c10d::Backend& group) {
  const int64_t each = comms::chunk_length(operation.length, group.getSize());
  at::Tensor whole = comms::padded_rows(x, operation.dim, each * group.getSize());
  std::vector<int64_t> sizes = whole.sizes().vec();
  sizes[0] = each;
  at::Tensor part = at::empty(sizes, x.options());
  comms::wait(group, *group._reduce_scatter_base(part, whole));
  return part.narrow(0, 0, own_chunk(operation.length, group).length)
      .movedim(0, operation.dim)
      .contiguous();
}

at::Tensor run(const at::Tensor& x, const Operation& operation, c10d::Backend& group) {
  switch (operation.kind) {
    case Kind::kNothing:
      return x;
    case Kind::kAllReduce:
      return all_reduced(x, group);
    case Kind::kAllGather:
      return gathered(x, operation, group);
    case Kind::kReduceScatter:
      return reduce_scattered(x, operation, group);
    case Kind::kOwnChunk:
      return comms::chunk_of(x, operation.dim, group).contiguous();
  }
  return {};
}

class Backward final : public torch::autograd::Node {
 public:
  Backward(torch::autograd::edge_list next, const Operation& operation, comms::BackendPtr group)
      : Node(std::move(next)), operation_(operation), group_(std::move(group)) {}

  std::string name() const override { return "TensorParallelBackward"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor()};
    const at::NoGradGuard no_grad;
    return {run(grads[0], operation_, *group_)};
  }

 private:
  const Operation operation_;
  const comms::BackendPtr group_;
};

at::Tensor differentiable(const at::Tensor& x, const Operation& forward, const Operation& backward,
                          const comms::BackendPtr& group) {
  if (group->getSize() == 1) return x;
  at::Tensor result;
  {
    const at::NoGradGuard no_grad;
    result = run(x.detach(), forward, *group);
  }
  if (!at::GradMode::is_enabled() || !x.requires_grad()) return result;
  const std::shared_ptr<Backward> node(
      new Backward(torch::autograd::collect_next_edges(x), backward, group),
      torch::autograd::deleteNode);
  torch::autograd::set_history(result, node);
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
