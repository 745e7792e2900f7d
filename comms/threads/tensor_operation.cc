// Data movement of ThreadBackend.
//
// Idea: the thread that posts the last part moves the data of all parts on its own current streams,
// between two marks per part. Before the move, these streams wait for `ready`, the point in the
// owner's streams at which it posted. After it, `done_at` records these streams, and the owner's
// wait() makes its current stream wait for that point. The host never waits for a device here.
//
// Invariant: a tensor is touched only after all streams of `ready` that use it, and the owner's
// stream uses it again only after `done_at`. A buffered SEND is copied before it completes, and its
// `done_at` covers the copy, so its owner may overwrite the input.
//
// Complexity: a transfer is one copy, or two if it is buffered. A collective of n ranks copies O(n)
// tensors on one thread, and records n * n marks per tensor on a device; a reduction adds the
// ranks' tensors in the order of ranks.
#include "pipewright/comms/threads/tensor_operation.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace pipewright::comms {

using c10d::OpType;
using c10d::ReduceOp;
using Tensors = std::vector<at::Tensor>;

TensorOperation::TensorOperation(int own_rank, OpType its_op, Tensors its_inputs,
                                 Tensors its_outputs)
    : rank(own_rank), op(its_op), inputs(std::move(its_inputs)), outputs(std::move(its_outputs)) {
  ready.add(inputs);
  ready.add(outputs);
}

std::string TensorOperation::describe() const {
  std::string text = c10::str("rank ", rank, ": ", c10d::opTypeToString(op));
  if (peer >= 0) text += c10::str(op == OpType::RECV ? " from" : " to", " rank ", peer);
  if (is_transfer()) text += c10::str(", tag ", tag);
  for (const at::Tensor& tensor : outputs.empty() ? inputs : outputs)
    text += c10::str(", ", tensor.numel(), " x ", tensor.scalar_type());
  return text;
}

namespace {

[[noreturn]] void fail_mismatch(const TensorOperation& a, const TensorOperation& b) {
  throw std::runtime_error(a.describe() + " does not match " + b.describe());
}

class TensorCarrier final : public Carrier {
 public:
  void buffer(Operation& operation) override {
    auto& send = static_cast<TensorOperation&>(operation);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    send.ready.block();
    send.payload = send.payload.clone();
    send.done_at.add({send.payload, send.inputs[0]});
  }

  void deliver(Operation& from, Operation& to) override {
    auto& send = static_cast<TensorOperation&>(from);
    auto& receive = static_cast<TensorOperation&>(to);
    const at::Tensor& source = send.payload;
    const at::Tensor& target = receive.outputs[0];
    const bool match = send.tag == receive.tag && source.numel() == target.numel() &&
                       source.scalar_type() == target.scalar_type();
    if (!match) fail_mismatch(receive, send);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    (send.done() ? send.done_at : send.ready).block();
    receive.ready.block();
    copy(source, target);
    receive.done_at.add({target, source});
    if (!send.done()) send.done_at.add({source});
  }

  void collect(std::span<const std::shared_ptr<Operation>> operations) override {
    std::vector<TensorOperation*> parts;
    for (const auto& operation : operations)
      parts.push_back(static_cast<TensorOperation*>(operation.get()));
    for (const TensorOperation* part : parts) {
      if (!match(*parts[0], *part)) fail_mismatch(*parts[0], *part);
      part->ready.block();
    }
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (size_t i = 0; i < parts[0]->outputs.size(); ++i) collect(parts, i);
    for (TensorOperation* part : parts) {
      for (const TensorOperation* used : parts) {
        part->done_at.add(used->inputs);
        part->done_at.add(used->outputs);
      }
    }
  }

 private:
  // Both are contiguous, and of one dtype.
  static void copy(const at::Tensor& from, const at::Tensor& to) {
    if (from.is_cpu() && to.is_cpu()) {
      std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
      return;
    }
    to.view(-1).copy_(from.view(-1), /*non_blocking=*/true);
  }

  static bool match(const TensorOperation& a, const TensorOperation& b) {
    const auto equal = [](const Tensors& left, const Tensors& right) {
      return std::ranges::equal(left, right, [](const at::Tensor& l, const at::Tensor& r) {
        return l.numel() == r.numel() && l.scalar_type() == r.scalar_type();
      });
    };
    return a.op == b.op && a.peer == b.peer && a.reduce == b.reduce && equal(a.inputs, b.inputs) &&
           equal(a.outputs, b.outputs);
  }

  static void add(at::Tensor& sum, const at::Tensor& next, ReduceOp::RedOpType op) {
    switch (op) {
      case ReduceOp::SUM:
      case ReduceOp::AVG:
        sum.add_(next);
        return;
      case ReduceOp::PRODUCT:
        sum.mul_(next);
        return;
      case ReduceOp::MIN:
        at::minimum_out(sum, sum, next);
        return;
      case ReduceOp::MAX:
        at::maximum_out(sum, sum, next);
        return;
      case ReduceOp::BAND:
      case ReduceOp::BOR:
      case ReduceOp::BXOR:
      case ReduceOp::PREMUL_SUM:
      case ReduceOp::UNUSED:
        break;
    }
    throw std::runtime_error(c10::str(
        "unsupported reduction: expected SUM, AVG, PRODUCT, MIN or MAX, got c10d's number ",
        static_cast<int>(op)));
  }

  // Moves the i-th tensor of a collective.
  static void collect(const std::vector<TensorOperation*>& parts, size_t i) {
    const OpType op = parts[0]->op;
    const auto num_ranks = static_cast<int64_t>(parts.size());
    const bool scatters = op == OpType::_REDUCE_SCATTER_BASE;
    const at::Device device = parts[0]->inputs[i].device();
    at::Tensor result;
    if (op == OpType::_ALLGATHER_BASE) {
      Tensors inputs;
      for (const TensorOperation* part : parts)
        inputs.push_back(part->inputs[i].view(-1).to(device, /*non_blocking=*/true));
      result = at::cat(inputs);
    } else if (op == OpType::BROADCAST) {
      result = parts[static_cast<size_t>(parts[0]->peer)]->inputs[i].view(-1);
    } else {
      result = parts[0]->inputs[i].view(-1).clone();
      for (size_t rank = 1; rank < parts.size(); ++rank)
        add(result, parts[rank]->inputs[i].view(-1).to(device, true), parts[0]->reduce);
      if (parts[0]->reduce == ReduceOp::AVG) result.div_(num_ranks);
    }
    for (const TensorOperation* part : parts) {
      const at::Tensor output = part->outputs[i].view(-1);
      const int64_t size = output.numel();
      const int64_t needed = scatters ? size * num_ranks : size;
      if (result.numel() != needed) {
        throw std::runtime_error(c10::str(part->describe(), ": expected ", needed,
                                          " elements for its output, got ", result.numel()));
      }
      const at::Tensor piece = scatters ? result.narrow(0, part->rank * size, size) : result;
      if (output.data_ptr() != piece.data_ptr()) output.copy_(piece, /*non_blocking=*/true);
    }
  }
};

}  // namespace

std::unique_ptr<Carrier> make_tensor_carrier() { return std::make_unique<TensorCarrier>(); }

}  // namespace pipewright::comms
