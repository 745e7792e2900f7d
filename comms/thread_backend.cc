#include "pipewright/comms/thread_backend.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <mutex>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <unordered_map>

namespace pipewright::comms {

using c10::impl::VirtualGuardImpl;
using c10d::OpType;
using c10d::ReduceOp;
using Tensors = ThreadBackend::Tensors;

// What one rank asks for.
struct ThreadBackend::Call {
  OpType op;
  Tensors inputs;
  Tensors outputs;
  int peer = -1;  // the other end, or the root of a broadcast
  int tag = 0;
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  ReduceOp::RedOpType reduce = ReduceOp::UNUSED;
};

namespace {

// A point in the current streams of the thread that makes it. Made of device-generic parts, so one
// code path serves every device; host tensors need no mark.
class StreamMark {
 public:
  // Tells the device's allocator too that its stream uses their memory.
  void add(const Tensors& tensors) {
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.defined() || tensor.is_cpu()) continue;
      const VirtualGuardImpl device(tensor.device().type());
      const c10::Stream stream = device.getStream(tensor.device());
      device.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
      events_.try_emplace(tensor.device(), tensor.device().type()).first->second.record(stream);
    }
  }

  // Makes the calling thread's current streams wait until the marked ones have come this far.
  void block() const {
    for (const auto& [device, event] : events_)
      event.block(VirtualGuardImpl(device.type()).getStream(device));
  }

  bool empty() const { return events_.empty(); }

 private:
  std::unordered_map<c10::Device, c10::Event> events_;
};

bool is_transfer(OpType op) { return op == OpType::SEND || op == OpType::RECV; }

}  // namespace

// Its tensors and streams, which the mailboxes know nothing of.
struct TensorOperation final : Operation {
  TensorOperation(int its_rank, OpType its_op, Tensors its_inputs, Tensors its_outputs)
      : rank(its_rank), op(its_op), inputs(std::move(its_inputs)), outputs(std::move(its_outputs)) {
    ready.add(inputs);
    ready.add(outputs);
  }

  const int rank;
  const OpType op;
  const Tensors inputs;
  const Tensors outputs;
  int peer = -1;
  int tag = 0;
  ReduceOp::RedOpType reduce = ReduceOp::UNUSED;
  StreamMark ready;    // what the caller's streams held when it was posted
  StreamMark done_at;  // behind the move
  at::Tensor payload;  // of a send: what it delivers, a copy once it is buffered

  std::string describe() const override {
    std::string text = c10::str("rank ", rank, ": ", c10d::opTypeToString(op));
    if (peer >= 0) text += c10::str(op == OpType::RECV ? " from" : " to", " rank ", peer);
    if (is_transfer(op)) text += c10::str(", tag ", tag);
    for (const at::Tensor& tensor : outputs.empty() ? inputs : outputs)
      text += c10::str(", ", tensor.numel(), " x ", tensor.scalar_type());
    return text;
  }
};

namespace {

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
    TORCH_CHECK(send.tag == receive.tag && source.numel() == target.numel() &&
                    source.scalar_type() == target.scalar_type(),
                receive.describe(), " meets ", send.describe());
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    (send.done() ? send.done_at : send.ready).block();
    receive.ready.block();
    target.view(-1).copy_(source.view(-1), /*non_blocking=*/true);
    receive.done_at.add({target, source});
    if (!send.done()) send.done_at.add({source});
  }

  void collect(std::span<const std::shared_ptr<Operation>> operations) override {
    std::vector<TensorOperation*> parts;
    for (const auto& operation : operations)
      parts.push_back(static_cast<TensorOperation*>(operation.get()));
    for (const TensorOperation* part : parts) {
      TORCH_CHECK(agree(*parts[0], *part), parts[0]->describe(), " meets ", part->describe());
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
  static bool agree(const TensorOperation& a, const TensorOperation& b) {
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
    TORCH_CHECK(false, "reduction ", static_cast<int>(op), " is not one of ranks as threads");
  }

  // The i-th tensor of a collective.
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
      TORCH_CHECK(result.numel() == (scatters ? size * num_ranks : size), part->describe(),
                  ": the output does not fit ", result.numel(), " elements");
      const at::Tensor piece = scatters ? result.narrow(0, part->rank * size, size) : result;
      if (output.data_ptr() != piece.data_ptr()) output.copy_(piece, /*non_blocking=*/true);
    }
  }
};

// Stands for an operation, as c10d knows it.
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
    if (!operation_->ready.empty() && torch::autograd::get_current_node()) {
      const std::string cause =
          operation_->describe() +
          ": waited for inside a backward, on the one thread that runs the backward of all ranks";
      mailboxes_->fail(cause);
    }
    if (!operation_->wait_until(std::chrono::steady_clock::now() + timeout, spin_)) {
      mailboxes_->fail(
          c10::str(operation_->describe(), " timed out after ", timeout.count(), " ms"));
      // Failed by now, or done at the last moment.
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
  TORCH_CHECK(
      outputs.size() == 1 && inputs.size() == 1 && outputs[0].size() == static_cast<size_t>(size_),
      "allgather: one tensor in, and one out for each of ", size_, " ranks");
  const at::Tensor flat = at::empty({inputs[0].numel() * size_}, inputs[0].options());
  // The list's tensors have no one storage: they are filled when the caller waits.
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

void ThreadBackend::abort() {
  mailboxes_->fail(c10::str("rank ", rank_, " ended its communication"));
}

ThreadBackend::WorkPtr ThreadBackend::post(Call call, std::function<void()> when_done) {
  auto operation = std::make_shared<TensorOperation>(rank_, call.op, std::move(call.inputs),
                                                     std::move(call.outputs));
  operation->peer = call.peer;
  operation->tag = call.tag;
  operation->reduce = call.reduce;
  for (const Tensors* tensors : {&operation->inputs, &operation->outputs}) {
    TORCH_CHECK(!is_transfer(call.op) || operation->inputs.size() + operation->outputs.size() == 1,
                "one tensor a message");
    for (const at::Tensor& tensor : *tensors)
      TORCH_CHECK(tensor.is_contiguous(), operation->describe(), " wants contiguous tensors");
  }
  TORCH_CHECK(call.peer < size_ && (call.peer >= 0 || !is_transfer(call.op)), operation->describe(),
              ": there are ", size_, " ranks");
  if (call.op == OpType::SEND) {
    operation->payload = operation->inputs[0];
    mailboxes_->post_send(operation, rank_, call.peer);
  } else if (call.op == OpType::RECV) {
    mailboxes_->post_receive(operation, call.peer, rank_);
  } else {
    mailboxes_->post_collective(operation, rank_);
  }
  const bool own_timeout = call.timeout > kNoTimeout;
  return c10::make_intrusive<ThreadWork>(std::move(operation), mailboxes_,
                                         own_timeout ? call.timeout : options_.timeout,
                                         options_.spin, std::move(when_done));
}

std::shared_ptr<Mailboxes> make_mailboxes(const std::string& name, int num_ranks,
                                          const ThreadOptions& options) {
  return std::make_shared<Mailboxes>(name, num_ranks, options.capacity,
                                     std::make_unique<TensorCarrier>());
}

namespace {

// Where the members of a group find each other: the first to come makes its mailboxes, the last
// takes them out.
class Meeting {
 public:
  std::shared_ptr<Mailboxes> join(const std::string& name, int size, const ThreadOptions& options) {
    const std::lock_guard lock(mutex_);
    auto& [mailboxes, joined] = groups_[name];
    if (!mailboxes) mailboxes = make_mailboxes(name, size, options);
    const std::shared_ptr<Mailboxes> found = mailboxes;
    if (++joined == size) groups_.erase(name);
    return found;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::pair<std::shared_ptr<Mailboxes>, int>> groups_;
};

}  // namespace

std::vector<World> thread_worlds(int size, const ThreadOptions& options) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  const auto meeting = std::make_shared<Meeting>();
  const MakeBackend make = [=](const std::string& name, int rank, int group_size) -> BackendPtr {
    return c10::make_intrusive<ThreadBackend>(meeting->join(name, group_size, options), rank,
                                              options);
  };
  std::vector<World> worlds;
  for (int rank = 0; rank < size; ++rank)
    worlds.emplace_back(rank, size, store, make, options.timeout);
  return worlds;
}

}  // namespace pipewright::comms
