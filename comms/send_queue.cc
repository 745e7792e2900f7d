#include "pipewright/comms/send_queue.h"

#include <ATen/ThreadLocalState.h>

namespace pipewright::comms {

SendQueue::~SendQueue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

SendQueue::WorkPtr SendQueue::add(WorkPtr send) {
  auto sent = c10::make_intrusive<Sent>();
  {
    const std::lock_guard lock(mutex_);
    pending_.emplace_back(std::move(send), sent);
    if (!thread_.joinable()) {
      // A profiler of the caller also counts what the thread frees.
      thread_ = std::thread([this, state = at::ThreadLocalState()] {
        const at::ThreadLocalStateGuard guard(state);
        run();
      });
    }
  }
  changed_.notify_all();
  return sent;
}

bool SendQueue::empty() const {
  const std::lock_guard lock(mutex_);
  return pending_.empty();
}

void SendQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !pending_.empty(); });
    if (pending_.empty()) return;
    auto [send, sent] = pending_.front();
    lock.unlock();
    std::exception_ptr error;
    try {
      send->wait();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    pending_.pop_front();
    lock.unlock();
    send.reset();  // the tensor, before anyone hears that it is sent
    sent->complete(error);
    lock.lock();
  }
}

}  // namespace pipewright::comms
