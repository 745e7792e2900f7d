#include "pipewright/comms/gloo/send_queue.h"

#include <ATen/ThreadLocalState.h>

#include <algorithm>
#include <utility>

namespace pipewright::comms {

SendQueue::~SendQueue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

SendQueue::WorkPtr SendQueue::add(WorkPtr send, size_t bytes) {
  auto sent = c10::make_intrusive<Sent>(std::move(send), bytes);
  {
    const std::lock_guard lock(mutex_);
    // Those that their callers have waited for.
    while (!pending_.empty() && pending_.front()->isCompleted()) {
      pending_bytes_ -= pending_.front()->bytes();
      pending_.pop_front();
    }
    pending_.push_back(sent);
    pending_bytes_ += bytes;
    if (pending_bytes_ < kPendingBytes) return sent;
    if (!thread_.joinable()) {
      // A profiler of the caller also counts what the thread frees.
      thread_ = std::thread([this, state = at::ThreadLocalState()] {
        const at::ThreadLocalStateGuard guard(state);
        run();
      });
    }
  }
  changed_.notify_all();  // without the lock, which the thread would wait for at once
  return sent;
}

bool SendQueue::empty() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::all_of(pending_, [](const auto& sent) { return sent->isCompleted(); });
}

bool SendQueue::Sent::wait(std::chrono::milliseconds timeout) {
  take_and_wait(timeout);
  return Work::wait(timeout);
}

void SendQueue::Sent::take_and_wait(std::chrono::milliseconds timeout) {
  WorkPtr send;
  {
    const std::lock_guard lock(taking_);
    send = std::exchange(send_, nullptr);
  }
  if (!send) return;
  std::exception_ptr error;
  try {
    send->wait(timeout);
  } catch (...) {
    error = std::current_exception();
  }
  send.reset();  // the tensor, before anyone hears that it is sent
  finish(error);
}

void SendQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || pending_bytes_ >= kPendingBytes; });
    if (stop_) return;
    while (!pending_.empty()) {
      const auto sent = pending_.front();
      lock.unlock();
      sent->take_and_wait(kNoTimeout);
      lock.lock();
      // add() may have removed it.
      if (pending_.empty() || pending_.front() != sent) continue;
      pending_bytes_ -= sent->bytes();
      pending_.pop_front();
    }
  }
}

}  // namespace pipewright::comms
