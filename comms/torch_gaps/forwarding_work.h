#ifndef PIPEWRIGHT_COMMS_TORCH_GAPS_FORWARDING_WORK_H_
#define PIPEWRIGHT_COMMS_TORCH_GAPS_FORWARDING_WORK_H_

#include <chrono>
#include <cstdint>
#include <exception>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

namespace pipewright::comms {

// A Work around another one, under the same name, to which it passes every call except those that
// wait. A subclass waits.
class ForwardingWork : public c10d::Work {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

  explicit ForwardingWork(WorkPtr work)
      : Work(-1, work->retrieveOpType()), work_(std::move(work)) {}

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
  std::vector<at::Tensor> result() override { return work_->result(); }
  void synchronize() override { wait(kNoTimeout); }
  void abort() override { work_->abort(); }
  FuturePtr getFuture() override { return work_->getFuture(); }
  FuturePtr getFutureResult() override { return work_->getFutureResult(); }
  float getDuration() const override { return work_->getDuration(); }
  uint64_t getSequencenumber() const override { return work_->getSequencenumber(); }

 protected:
  const WorkPtr work_;
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_TORCH_GAPS_FORWARDING_WORK_H_
