#ifndef PIPEWRIGHT_COMMS_SEND_QUEUE_H_
#define PIPEWRIGHT_COMMS_SEND_QUEUE_H_

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

namespace pipewright::comms {

// A thread that waits for SENDs, for backends whose Work completes only in wait(), such as Gloo's.
// What a SEND keeps alive is freed as soon as it has been sent, not when its caller gets to wait.
// Thread-safe.
class SendQueue {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  SendQueue() = default;
  // Waits for the SENDs that are still pending: abort their group first if they may never end.
  ~SendQueue();
  SendQueue(const SendQueue&) = delete;
  SendQueue& operator=(const SendQueue&) = delete;

  // Returns a Work that completes when `send` does. SENDs are waited for in the order in which they
  // were added. The first call starts the thread.
  WorkPtr add(WorkPtr send);
  bool empty() const;

 private:
  // The Work that add() returns. It does not keep the tensor.
  class Sent final : public c10d::Work {
   public:
    Sent() : Work(-1, c10d::OpType::SEND) {}
    void complete(std::exception_ptr error) { finish(std::move(error)); }
  };

  void run();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<WorkPtr, c10::intrusive_ptr<Sent>>> pending_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_SEND_QUEUE_H_
