#include "pipewright/comms/torch_gaps/abortable_gloo.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>

#include <atomic>
#include <exception>
#include <limits>
#include <stdexcept>
#include <utility>

#include "pipewright/comms/torch_gaps/forwarding_work.h"

namespace pipewright::comms {
namespace {

const std::runtime_error kAborted("the group was aborted before this operation had ended");

}  // namespace

class AbortableWaits::Transfer final : public ForwardingWork {
 public:
  Transfer(WorkPtr work, std::shared_ptr<AbortableWaits> waits)
      : ForwardingWork(std::move(work)), waits_(std::move(waits)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    {
      const std::lock_guard lock(waits_->mutex_);
      if (waits_->aborted_) throw kAborted;
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
    if (!done) throw kAborted;
    return true;
  }

 private:
  const std::shared_ptr<AbortableWaits> waits_;
};

// A future that ends as another one does, or with abort().
class AbortableWaits::Ending {
 public:
  using Future = c10::ivalue::Future;

  explicit Ending(const c10::TypePtr& type) : future_(c10::make_intrusive<Future>(type)) {}

  const c10::intrusive_ptr<Future>& future() const { return future_; }
  void end(Future& other) {
    if (has_ended_.exchange(true)) return;
    if (other.hasError())
      future_->setError(other.exception_ptr());
    else
      future_->markCompleted(other.value());
  }
  void abort() {
    if (!has_ended_.exchange(true)) future_->setError(std::make_exception_ptr(kAborted));
  }

 private:
  const c10::intrusive_ptr<Future> future_;
  std::atomic<bool> has_ended_ = false;
};

class AbortableWaits::Collective final : public ForwardingWork {
 public:
  Collective(WorkPtr work, std::shared_ptr<AbortableWaits> waits)
      : ForwardingWork(std::move(work)), waits_(std::move(waits)) {
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
      if (!*ended_) throw kAborted;
    }
    return work_->wait(kNoTimeout);
  }

  // torch's DistributedDataParallel waits for it.
  FuturePtr getFuture() override {
    const FuturePtr inner = work_->getFuture();
    const auto ending = std::make_shared<Ending>(inner->elementType());
    const bool aborted = [&] {
      const std::lock_guard lock(waits_->mutex_);
      if (!waits_->aborted_) waits_->endings_.insert(ending);
      return waits_->aborted_;
    }();
    if (aborted) ending->abort();
    inner->addCallback([waits = waits_, ending](c10::ivalue::Future& ended) {
      {
        const std::lock_guard lock(waits->mutex_);
        waits->endings_.erase(ending);
      }
      ending->end(ended);
    });
    return ending->future();
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
  std::set<std::shared_ptr<Ending>> endings;
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    for (c10d::Work* work : awaited_) work->abort();
    endings.swap(endings_);
  }
  changed_.notify_all();
  for (const auto& ending : endings) ending->abort();
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
