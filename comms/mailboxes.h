#ifndef PIPEWRIGHT_COMMS_MAILBOXES_H_
#define PIPEWRIGHT_COMMS_MAILBOXES_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "pipewright/ir/channel.h"

// How ranks that are threads of one process meet: who waits for whom, without a word about what is
// moved. No LibTorch, so that it can be tested under tsan.
//
// One Mailboxes is one communicator, ordered as NCCL's are: each rank has one queue for all its
// SENDs and RECVs, served in the order of posting. A transfer needs both ends at the head of their
// queues; with capacity n, up to n SENDs of an ordered pair of ranks finish before their RECVs.
// Which operations share a queue, that is the channel model, is thus a matter of which ranks share
// a communicator (ir/channel.h). Collectives are numbered a rank, and equal numbers meet.
//
// Nothing runs in the background: whoever posts the last missing part moves the data for all.

namespace pipewright::comms {

// One rank's part in a transfer or collective.
class Operation {
 public:
  virtual ~Operation() = default;
  virtual std::string describe() const = 0;  // "rank 1: send of 4 x Float to rank 0"

  bool done() const { return done_.load(std::memory_order_acquire); }
  // False at the deadline. It polls for `spin`, giving way to other threads, before it sleeps:
  // waking a thread costs more than most messages.
  bool wait_until(std::chrono::steady_clock::time_point deadline, std::chrono::microseconds spin);
  // What it ended with; null for success. Only once it is done.
  std::exception_ptr error() const { return error_; }

 private:
  friend class Mailboxes;
  void finish(std::exception_ptr error);

  std::atomic<bool> done_ = false;
  std::exception_ptr error_;  // written once, before done_
  std::mutex mutex_;
  std::condition_variable finished_;
};

// Moves what the operations stand for. Called under the lock of the mailboxes, on the thread that
// posts; what it throws fails the group.
class Carrier {
 public:
  virtual ~Carrier() = default;
  // Takes what `send` sends, so that it is finished before it is received.
  virtual void buffer(Operation& send) = 0;
  virtual void deliver(Operation& send, Operation& receive) = 0;
  // All parts of a collective, by rank. Throws if they do not agree.
  virtual void collect(std::span<const std::shared_ptr<Operation>> parts) = 0;
};

// Any thread. After the first failure all pending operations end with an error that names it and
// them, and posting throws: there is no way back.
class Mailboxes {
 public:
  // `name` stands in errors. A rank cannot send to itself.
  Mailboxes(std::string name, int num_ranks, ir::ChannelCapacity capacity,
            std::unique_ptr<Carrier> carrier);

  int num_ranks() const { return static_cast<int>(queues_.size()); }

  // Ranks in range. Throws std::runtime_error once the group has failed.
  void post_send(std::shared_ptr<Operation> send, int from, int to);
  void post_receive(std::shared_ptr<Operation> receive, int from, int to);
  void post_collective(std::shared_ptr<Operation> part, int rank);

  // Only the first call counts.
  void fail(const std::string& cause);

 private:
  struct Queued {
    std::shared_ptr<Operation> operation;
    bool is_send;
    int peer;
  };
  using Buffered = std::deque<std::shared_ptr<Operation>>;

  Buffered& buffered(int from, int to);
  void refuse_if_failed(const Operation& operation) const;
  void advance(int rank);
  bool advance_head(int rank, std::vector<int>* awake);
  bool carry(std::span<const std::shared_ptr<Operation>> operations, auto&& move);
  void fail_locked(const std::string& cause);

  const std::string name_;
  const ir::ChannelCapacity capacity_;
  const std::unique_ptr<Carrier> carrier_;

  std::mutex mutex_;
  std::string cause_;                          // of the failure; empty while there is none
  std::vector<std::deque<Queued>> queues_;     // by rank
  std::vector<Buffered> buffered_;             // by from * ranks + to: SENDs done, not received
  std::vector<uint64_t> collectives_of_rank_;  // how many it has posted
  std::map<uint64_t, std::vector<std::shared_ptr<Operation>>> collectives_;  // by number: by rank
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_MAILBOXES_H_
