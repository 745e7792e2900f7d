#include "pipewright/comms/threads/thread_backend.h"

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/engine.h>

#include <stdexcept>
#include <utility>

#include "pipewright/comms/threads/tensor_operation.h"

namespace pipewright::comms {

using c10d::OpType;
using c10d::ReduceOp;
using Tensors = ThreadBackend::Tensors;

// The arguments of one operation.
struct ThreadBackend::Call {
  OpType op;
  Tensors inputs;
  Tensors outputs;
  int peer = -1;  // the other end of a transfer, or the root of a broadcast
  int tag = 0;
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  ReduceOp::RedOpType reduce = ReduceOp::UNUSED;
};

namespace {

// The c10d handle of an operation.
class ThreadWork final : public c10d::Work {
 public:
  ThreadWork(std::shared_ptr<TensorOperation> operation, std::shared_ptr<Mailboxes> mailboxes,
             std::chrono::milliseconds timeout, std::chrono::microseconds spin,
             std::function<void()> when_done)
      : Work(operation->rank, operation->op),
        operation_(std::move(operation)),
        mailboxes_(std::move(mailboxes)),
        timeout_(timeout),
        spin_(spin),
        when_done_(std::move(when_done)) {}

  bool isCompleted() override { return operation_->done(); }
  bool isSuccess() const override { return operation_->done() && !operation_->error(); }
  std::exception_ptr exception() const override {
    return operation_->done() ? operation_->error() : nullptr;
  }
  std::vector<at::Tensor> result() override { return operation_->outputs; }
  void synchronize() override {
    operation_->done_at.block();
    if (when_done_) std::exchange(when_done_, nullptr)();
  }

  bool wait(std::chrono::milliseconds timeout) override {
    if (!operation_->done()) block(timeout == kNoTimeout ? timeout_ : timeout);
    if (operation_->error()) std::rethrow_exception(operation_->error());
    synchronize();
    return true;
  }

 private:
  void block(std::chrono::milliseconds timeout) {
    if (!operation_->ready.empty() && torch::autograd::get_current_graph_task_id() != -1) {
      const std::string cause = operation_->describe() +
                                ": wait() inside a backward would block the autograd thread that "
                                "all ranks share: train with an Executor, or with a process per "
                                "rank, which tensor parallelism needs";
      mailboxes_->fail(cause);
    }
    if (!operation_->wait_until(std::chrono::steady_clock::now() + timeout, spin_)) {
      mailboxes_->fail(
          c10::str(operation_->describe(), " timed out after ", timeout.count(), " ms"));
      // It has failed by now, or completed at the last moment.
      operation_->wait_until(std::chrono::steady_clock::time_point::max(), spin_);
    }
  }

  const std::shared_ptr<TensorOperation> operation_;
  const std::shared_ptr<Mailboxes> mailboxes_;
  const std::chrono::milliseconds timeout_;
  const std::chrono::microseconds spin_;
  std::function<void()> when_done_;
};

}  // namespace

ThreadBackend::ThreadBackend(std::shared_ptr<Mailboxes> mailboxes, int rank,
                             const ThreadOptions& options)
    : Backend(rank, mailboxes->num_ranks()), mailboxes_(std::move(mailboxes)), options_(options) {}

c10::intrusive_ptr<c10d::Backend::Options> ThreadBackend::getBackendOptions() {
  return c10::make_intrusive<Options>("thread", options_.timeout);
}

ThreadBackend::WorkPtr ThreadBackend::send(Tensors& tensors, int to, int tag) {
  return post({OpType::SEND, tensors, {}, to, tag});
}

ThreadBackend::WorkPtr ThreadBackend::recv(Tensors& tensors, int from, int tag) {
  return post({OpType::RECV, {}, tensors, from, tag});
}

ThreadBackend::WorkPtr ThreadBackend::broadcast(Tensors& tensors,
                                                const c10d::BroadcastOptions& options) {
  return post({OpType::BROADCAST, tensors, tensors, static_cast<int>(options.rootRank), 0,
               options.timeout});
}

ThreadBackend::WorkPtr ThreadBackend::allreduce(Tensors& tensors,
                                                const c10d::AllreduceOptions& options) {
  return post({OpType::ALLREDUCE, tensors, tensors, -1, 0, options.timeout, options.reduceOp.op_});
}

ThreadBackend::WorkPtr ThreadBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return allreduce(tensors, options);
}

ThreadBackend::WorkPtr ThreadBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions& options) {
  const size_t num_outputs = outputs.size() == 1 ? outputs[0].size() : 0;
  if (inputs.size() != 1 || num_outputs != static_cast<size_t>(size_)) {
    throw std::invalid_argument(c10::str("allgather: expected one input and a list of ", size_,
                                         " outputs, got ", inputs.size(), " inputs and ",
                                         num_outputs, " outputs"));
  }
  const at::Tensor flat = at::empty({inputs[0].numel() * size_}, inputs[0].options());
  // The outputs do not share one storage, so they are filled when the caller waits.
  return post(
      {OpType::_ALLGATHER_BASE, inputs, {flat}, -1, 0, options.timeout}, [list = outputs[0], flat] {
        const int64_t size = flat.numel() / static_cast<int64_t>(list.size());
        for (size_t i = 0; i < list.size(); ++i)
          list[i].view(-1).copy_(flat.narrow(0, static_cast<int64_t>(i) * size, size), true);
      });
}

ThreadBackend::WorkPtr ThreadBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::AllgatherOptions& options) {
  return post({OpType::_ALLGATHER_BASE, {input}, {output}, -1, 0, options.timeout});
}

ThreadBackend::WorkPtr ThreadBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return post({OpType::_ALLGATHER_BASE, inputs, outputs, -1, 0, options.timeout});
}

ThreadBackend::WorkPtr ThreadBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  return post({OpType::_REDUCE_SCATTER_BASE,
               {input},
               {output},
               -1,
               0,
               options.timeout,
               options.reduceOp.op_});
}

ThreadBackend::WorkPtr ThreadBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  return post({OpType::_REDUCE_SCATTER_BASE, inputs, outputs, -1, 0, options.timeout,
               options.reduceOp.op_});
}

ThreadBackend::WorkPtr ThreadBackend::barrier(const c10d::BarrierOptions& options) {
  return post({OpType::BARRIER, {}, {}, -1, 0, options.timeout});
}

void ThreadBackend::abort() { mailboxes_->fail(c10::str("rank ", rank_, " aborted the group")); }

void ThreadBackend::check(const TensorOperation& operation) const {
  const auto expect = [&](bool holds, const auto&... what) {
    if (!holds) throw std::invalid_argument(c10::str(operation.describe(), ": expected ", what...));
  };
  const size_t num_tensors = operation.inputs.size() + operation.outputs.size();
  expect(!operation.is_transfer() || num_tensors == 1, "one tensor per message, got ", num_tensors);
  for (const Tensors* tensors : {&operation.inputs, &operation.outputs}) {
    for (const at::Tensor& tensor : *tensors) {
      expect(tensor.is_contiguous(), "contiguous tensors, got strides ", tensor.strides());
      expect(!tensor.is_conj() && !tensor.is_neg(),
             "tensors in memory, got one whose conjugate or negative was not computed");
    }
  }
  expect(operation.peer < size_ && (operation.peer >= 0 || !operation.is_transfer()),
         "a peer from 0 to ", size_ - 1, ", got ", operation.peer);
}

ThreadBackend::WorkPtr ThreadBackend::post(Call call, std::function<void()> when_done) {
  auto operation = std::make_shared<TensorOperation>(rank_, call.op, std::move(call.inputs),
                                                     std::move(call.outputs));
  operation->peer = call.peer;
  operation->tag = call.tag;
  operation->reduce = call.reduce;
  check(*operation);
  if (call.op == OpType::SEND) {
    operation->payload = operation->inputs[0];
    mailboxes_->post_send(operation, rank_, call.peer);
  } else if (call.op == OpType::RECV) {
    mailboxes_->post_receive(operation, call.peer, rank_);
  } else {
    mailboxes_->post_collective(operation, rank_);
  }
  const bool has_own_timeout = call.timeout > kNoTimeout;
  return c10::make_intrusive<ThreadWork>(std::move(operation), mailboxes_,
                                         has_own_timeout ? call.timeout : options_.timeout,
                                         options_.spin, std::move(when_done));
}

MakeBackend with_local_groups(MakeBackend make, int world_size, std::chrono::milliseconds timeout) {
  if (world_size == 1) return make;
  return [=](const std::string& name, int rank, int size) -> BackendPtr {
    if (size > 1) return make(name, rank, size);
    return c10::make_intrusive<ThreadBackend>(
        std::make_shared<Mailboxes>(name, 1, ir::kDefaultCapacity, make_tensor_carrier()), 0,
        ThreadOptions{.timeout = timeout});
  };
}

World world_with_local_groups(const Environment& environment, std::chrono::milliseconds timeout,
                              const std::function<MakeBackend(const StorePtr& store)>& backends) {
  const int size = environment.world_size;
  const StorePtr store = connect_store(environment, timeout);
  return World(environment.rank, size, store, with_local_groups(backends(store), size, timeout),
               timeout);
}

}  // namespace pipewright::comms
