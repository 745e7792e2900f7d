#include "tests/device/backend.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/util/StringUtil.h>

#include <stdexcept>

#include "tests/device/collectives.h"
#include "tests/device/current.h"
#include "tests/device/device.h"
#include "tests/device/memory.h"
#include "tests/device/scheduler.h"

namespace pipewright::testdevice {

using c10d::OpType;

namespace {

class DeviceWork final : public c10d::Work {
 public:
  DeviceWork(int rank, OpType op, std::shared_ptr<Member> member, size_t position, Tensors stash)
      : Work(rank, op),
        member_(std::move(member)),
        position_(position),
        stash_(std::move(stash)),
        end_(kDeviceType) {
    end_.record(member_->stream());
  }

  bool isCompleted() override {
    const Lock lock(machine().mutex);
    return has_reached(stream_of(member_->stream()), position_);
  }
  bool isSuccess() const override { return member_->failure().empty(); }
  std::exception_ptr exception() const override {
    const std::string failure = member_->failure();
    return failure.empty() ? nullptr : std::make_exception_ptr(std::runtime_error(failure));
  }
  void synchronize() override {
    end_.block(current_stream(member_->device()));
    stash_.clear();
    if (opType_ == OpType::BARRIER) end_.synchronize();
  }
  bool wait(std::chrono::milliseconds timeout) override {
    synchronize();
    if (timeout != kNoTimeout) end_.synchronize();
    return true;
  }

 private:
  const std::shared_ptr<Member> member_;
  const size_t position_;
  Tensors stash_;
  c10::Event end_;
};

// "4 x Float, 2 x Long".
std::string describe(const Tensors& tensors) {
  std::string text;
  for (const at::Tensor& tensor : tensors) {
    text += (text.empty() ? "" : ", ") + std::to_string(tensor.numel()) + " x " +
            c10::toString(tensor.scalar_type());
  }
  return text;
}

}  // namespace

DeviceBackend::DeviceBackend(std::shared_ptr<Member> member, int rank, int size,
                             const BackendOptions& options)
    : Backend(rank, size), member_(std::move(member)), options_(options) {
  setBoundDeviceId(device(member_->device()));
}

c10::intrusive_ptr<c10d::Backend::Options> DeviceBackend::getBackendOptions() {
  return c10::make_intrusive<Options>("late", options_.timeout);
}

void DeviceBackend::startCoalescing() {
  if (group_) throw std::runtime_error("startCoalescing: expected one group at a time");
  group_.emplace();
}

DeviceBackend::WorkPtr DeviceBackend::endCoalescing() {
  if (!group_) throw std::runtime_error("endCoalescing: expected startCoalescing before");
  std::vector<Request> requests = std::move(*group_);
  group_.reset();
  return requests.empty() ? nullptr : issue(OpType::COALESCED, std::move(requests));
}

DeviceBackend::WorkPtr DeviceBackend::issue(OpType op, std::vector<Request> requests) {
  Tensors stash;
  for (const Request& request : requests) {
    for (const Tensors* tensors : {&request.reads, &request.writes})
      if (options_.stash) stash.insert(stash.end(), tensors->begin(), tensors->end());
  }
  const size_t position = member_->issue(std::move(requests));
  return c10::make_intrusive<DeviceWork>(rank_, op, member_, position, std::move(stash));
}

DeviceBackend::WorkPtr DeviceBackend::post_request(OpType op, Request request) {
  for (const Tensors* tensors : {&request.reads, &request.writes}) {
    for (const at::Tensor& tensor : *tensors) {
      if (tensor.device() == device(member_->device()) && tensor.is_contiguous()) continue;
      throw std::invalid_argument(c10::str(request.description, ": expected contiguous tensors on ",
                                           device(member_->device()), ", got strides ",
                                           tensor.strides(), " on ", tensor.device()));
    }
  }
  if (!group_) return issue(op, {std::move(request)});
  group_->push_back(std::move(request));
  return nullptr;
}

DeviceBackend::WorkPtr DeviceBackend::post(OpType op, const std::string& name, Tensors reads,
                                           Tensors writes, Body body) {
  const std::string what = name + " of " + describe(reads);
  return post_request(
      op, {"all", size_, what, what, std::move(reads), std::move(writes), std::move(body)});
}

DeviceBackend::WorkPtr DeviceBackend::post_transfer(OpType op, Tensors& tensors, int peer) {
  const bool sends = op == OpType::SEND;
  if (peer < 0 || peer >= size_ || peer == rank_ || tensors.size() != 1) {
    throw std::invalid_argument(c10::str("transfer on rank ", rank_, " of ", size_,
                                         ": expected one tensor and another rank, got ",
                                         tensors.size(), " tensors and rank ", peer));
  }
  if (tensors[0].is_complex()) {
    throw std::invalid_argument(c10::str("transfer on rank ", rank_, " of ", size_,
                                         ": expected a dtype that NCCL has, got ",
                                         tensors[0].scalar_type()));
  }
  if (options_.records_transfers)
    device_allocator().recordStream(tensors[0].storage().data_ptr(), member_->stream());
  const int from = sends ? rank_ : peer, to = sends ? peer : rank_;
  return post_request(
      op, {c10::str(from, ">", to), 2, c10::str("transfer of ", describe(tensors)),
           c10::str(sends ? "SEND" : "RECV", " of ", describe(tensors), sends ? " to" : " from",
                    " rank ", peer),
           sends ? tensors : Tensors(), sends ? Tensors() : tensors, transfer(from, to)});
}

DeviceBackend::WorkPtr DeviceBackend::send(Tensors& tensors, int to, int) {
  return post_transfer(OpType::SEND, tensors, to);
}

DeviceBackend::WorkPtr DeviceBackend::recv(Tensors& tensors, int from, int) {
  return post_transfer(OpType::RECV, tensors, from);
}

DeviceBackend::WorkPtr DeviceBackend::broadcast(Tensors& tensors,
                                                const c10d::BroadcastOptions& options) {
  const auto root = static_cast<int>(options.rootRank);
  return post(OpType::BROADCAST, c10::str("broadcast from rank ", root), tensors, tensors,
              testdevice::broadcast(root));
}

DeviceBackend::WorkPtr DeviceBackend::allreduce(Tensors& tensors,
                                                const c10d::AllreduceOptions& options) {
  return post(OpType::ALLREDUCE, "all-reduce " + name_of(options.reduceOp), tensors, tensors,
              all_reduce(options.reduceOp));
}

DeviceBackend::WorkPtr DeviceBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return allreduce(tensors, options);
}

DeviceBackend::WorkPtr DeviceBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions&) {
  if (inputs.size() != 1 || outputs.size() != 1 ||
      outputs[0].size() != static_cast<size_t>(size_)) {
    throw std::invalid_argument(
        c10::str("allgather: expected one input and a list of ", size_, " outputs"));
  }
  const Body body = [](std::map<int, Part>& parts) {
    for (auto& [rank, mine] : parts) {
      for (auto& [other, theirs] : parts)
        mine.outputs.at(static_cast<size_t>(other)).view(-1).copy_(theirs.inputs[0].view(-1));
    }
  };
  return post(OpType::ALLGATHER, "all-gather to a list", inputs, outputs[0], body);
}

DeviceBackend::WorkPtr DeviceBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::AllgatherOptions&) {
  return post(OpType::_ALLGATHER_BASE, "all-gather", {input}, {output}, all_gather());
}

DeviceBackend::WorkPtr DeviceBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions&) {
  return post(OpType::COALESCED, "all-gather", inputs, outputs, all_gather());
}

DeviceBackend::WorkPtr DeviceBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  return post(OpType::_REDUCE_SCATTER_BASE, "reduce-scatter " + name_of(options.reduceOp), {input},
              {output}, testdevice::reduce_scatter(options.reduceOp));
}

DeviceBackend::WorkPtr DeviceBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  return post(OpType::COALESCED, "reduce-scatter " + name_of(options.reduceOp), inputs, outputs,
              testdevice::reduce_scatter(options.reduceOp));
}

DeviceBackend::WorkPtr DeviceBackend::barrier(const c10d::BarrierOptions&) {
  return post(OpType::BARRIER, "barrier", {}, {}, [](std::map<int, Part>&) {});
}

}  // namespace pipewright::testdevice
