#ifndef PIPEWRIGHT_COMMS_GLOO_SEND_QUEUE_H_
#define PIPEWRIGHT_COMMS_GLOO_SEND_QUEUE_H_

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

namespace pipewright::comms {

// A thread that waits for SENDs, for backends whose Work completes only in wait(), such as Gloo's.
// What a SEND keeps alive is freed as soon as it has been sent, not when its caller gets to wait.
// Because waking a thread costs more than a small message, it is woken once kPendingBytes have been
// added. Thread-safe.
class SendQueue {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  static constexpr size_t kPendingBytes = 16 << 10;

  SendQueue() = default;
  // Waits for the SENDs that are still pending: abort their group first if they may never end.
  ~SendQueue();
  SendQueue(const SendQueue&) = delete;
  SendQueue& operator=(const SendQueue&) = delete;

  // Returns a Work that completes when `send`, of this size, does. Its wait() waits itself if the
  // thread does not. SENDs are waited for in the order in which they were added. The first call
  // starts the thread.
  WorkPtr add(WorkPtr send, size_t bytes);
  // Whether all SENDs have been waited for.
  bool empty() const;

 private:
  // The Work that add() returns. Whoever takes the SEND from it waits, and then frees it.
  class Sent final : public c10d::Work {
   public:
    Sent(WorkPtr send, size_t bytes)
        : Work(-1, c10d::OpType::SEND), bytes_(bytes), send_(std::move(send)) {}
    size_t bytes() const { return bytes_; }
    bool wait(std::chrono::milliseconds timeout) override;
    // Does nothing if another thread has taken the SEND.
    void take_and_wait(std::chrono::milliseconds timeout);

   private:
    const size_t bytes_;
    std::mutex taking_;
    WorkPtr send_;
  };

  void run();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<c10::intrusive_ptr<Sent>> pending_;
  size_t pending_bytes_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_GLOO_SEND_QUEUE_H_
