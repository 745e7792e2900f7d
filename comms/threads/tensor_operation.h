#ifndef PIPEWRIGHT_COMMS_THREADS_TENSOR_OPERATION_H_
#define PIPEWRIGHT_COMMS_THREADS_TENSOR_OPERATION_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "pipewright/comms/device_event.h"
#include "pipewright/comms/threads/mailboxes.h"

// Operations of Mailboxes that carry tensors, and the Carrier that moves them.

namespace pipewright::comms {

// One rank's part of a transfer or a collective of ThreadBackend.
struct TensorOperation final : Operation {
  // Marks the caller's streams: no tensor is read or written before they reach this point.
  TensorOperation(int own_rank, c10d::OpType its_op, std::vector<at::Tensor> its_inputs,
                  std::vector<at::Tensor> its_outputs);

  // "rank 1: RECV from rank 0, tag 5, 4 x Float"
  std::string describe() const override;
  bool is_transfer() const { return op == c10d::OpType::SEND || op == c10d::OpType::RECV; }

  const int rank;
  const c10d::OpType op;
  const std::vector<at::Tensor> inputs;
  const std::vector<at::Tensor> outputs;
  int peer = -1;  // the other end of a transfer, or the root of a broadcast
  int tag = 0;
  c10d::ReduceOp::RedOpType reduce = c10d::ReduceOp::UNUSED;
  StreamMark ready;    // the caller's streams when it posted
  StreamMark done_at;  // the streams after the data has moved
  at::Tensor payload;  // what a SEND delivers: its input, or a copy once it is buffered
};

// Moves tensors on the current streams of the thread that posts the last part. Reductions run in
// the order of ranks, so results are bitwise reproducible. Fails with std::runtime_error, naming
// both operations, if they do not match: a transfer in tag, size or dtype, a collective also in its
// kind, root and reduction.
std::unique_ptr<Carrier> make_tensor_carrier();

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_THREADS_TENSOR_OPERATION_H_
