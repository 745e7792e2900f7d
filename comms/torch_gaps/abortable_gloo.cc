#include "pipewright/comms/torch_gaps/abortable_gloo.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>

#include <limits>
#include <stdexcept>
#include <utility>

namespace pipewright::comms {
namespace {

[[noreturn]] void throw_aborted() {
  throw std::runtime_error("the group was aborted before this operation had ended");
}

// Another Work, under the same name.
class Wrapped : public c10d::Work {
 public:
  explicit Wrapped(AbortableWaits::WorkPtr work)
      : Work(-1, work->retrieveOpType()), work_(std::move(work)) {}

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
  std::vector<at::Tensor> result() override { return work_->result(); }
  void synchronize() override { wait(kNoTimeout); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return work_->getFuture(); }
  uint64_t getSequencenumber() const override { return work_->getSequencenumber(); }

 protected:
  const AbortableWaits::WorkPtr work_;
};

}  // namespace

class AbortableWaits::Transfer final : public Wrapped {
 public:
  Transfer(WorkPtr work, std::shared_ptr<AbortableWaits> waits)
      : Wrapped(std::move(work)), waits_(std::move(waits)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    {
      const std::lock_guard lock(waits_->mutex_);
      if (waits_->aborted_) throw_aborted();
      waits_->awaited_.insert(work_.get());
    }
    const auto end_wait = [this] {
      const std::lock_guard lock(waits_->mutex_);
      waits_->awaited_.erase(waits_->awaited_.find(work_.get()));
    };
    bool done = false;
    try {
      done = work_->wait(timeout);
    } catch (...) {
      end_wait();
      throw;
    }
    end_wait();
    if (!done) throw_aborted();
    return true;
  }

 private:
  const std::shared_ptr<AbortableWaits> waits_;
};

class AbortableWaits::Collective final : public Wrapped {
 public:
  Collective(WorkPtr work, std::shared_ptr<AbortableWaits> waits)
      : Wrapped(std::move(work)), waits_(std::move(waits)) {
    work_->getFuture()->addCallback([waits = waits_, ended = ended_](c10::ivalue::Future&) {
      {
        const std::lock_guard lock(waits->mutex_);
        *ended = true;
      }
      waits->changed_.notify_all();
    });
  }

  bool wait(std::chrono::milliseconds timeout) override {
    {
      std::unique_lock lock(waits_->mutex_);
      const auto is_over = [this] { return *ended_ || waits_->aborted_; };
      if (timeout == kNoTimeout)
        waits_->changed_.wait(lock, is_over);
      else if (!waits_->changed_.wait_for(lock, timeout, is_over))
        throw std::runtime_error("the operation did not end within " +
                                 std::to_string(timeout.count()) + " ms");
      if (!*ended_) throw_aborted();
    }
    return work_->wait(kNoTimeout);
  }

 private:
  const std::shared_ptr<AbortableWaits> waits_;
  const std::shared_ptr<bool> ended_ = std::make_shared<bool>(false);  // under waits_->mutex_
};

AbortableWaits::WorkPtr AbortableWaits::transfer(WorkPtr work) {
  return c10::make_intrusive<Transfer>(std::move(work), shared_from_this());
}

AbortableWaits::WorkPtr AbortableWaits::collective(WorkPtr work) {
  return c10::make_intrusive<Collective>(std::move(work), shared_from_this());
}

void AbortableWaits::abort() {
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    for (c10d::Work* work : awaited_) work->abort();
  }
  changed_.notify_all();
}

void AbortableGloo::abort() {
  waits_->abort();
  close_connections();
}

// A receive that expires makes Gloo close every connection of the group. A connection that is
// closed already refuses the receive, hence a try per peer.
void AbortableGloo::close_connections() {
  constexpr int kUnusedTag = std::numeric_limits<int>::max();
  for (int peer = 0; peer < getSize(); ++peer) {
    if (peer == getRank()) continue;
    Tensors nothing = {at::empty({1}, at::kByte)};
    try {
      ProcessGroupGloo::recv(nothing, peer, kUnusedTag)->wait(std::chrono::milliseconds(1));
    } catch (const std::exception&) {
    }
  }
}

AbortableGloo::WorkPtr AbortableGloo::send(Tensors& tensors, int to, int tag) {
  return waits_->transfer(ProcessGroupGloo::send(tensors, to, tag));
}

AbortableGloo::WorkPtr AbortableGloo::recv(Tensors& tensors, int from, int tag) {
  return waits_->transfer(ProcessGroupGloo::recv(tensors, from, tag));
}

AbortableGloo::WorkPtr AbortableGloo::recvAnysource(Tensors& tensors, int tag) {
  return waits_->transfer(ProcessGroupGloo::recvAnysource(tensors, tag));
}

// torch builds some collectives from others, which are abortable already.
AbortableGloo::WorkPtr AbortableGloo::abortable(WorkPtr work) {
  const bool runs_on_its_thread = dynamic_cast<AsyncWork*>(work.get()) != nullptr;
  return runs_on_its_thread ? waits_->collective(std::move(work)) : std::move(work);
}

}  // namespace pipewright::comms
