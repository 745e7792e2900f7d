#ifndef PIPEWRIGHT_COMMS_THREADS_MAILBOXES_H_
#define PIPEWRIGHT_COMMS_THREADS_MAILBOXES_H_

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

// One communicator whose ranks are threads of one process: it decides which operations are matched
// and when each completes. A Carrier moves the data, so that this part needs no LibTorch and runs
// under tsan.
//
// Operations are ordered as on an NCCL communicator. Each rank has one queue for all its SENDs and
// RECVs, served in posting order. A transfer needs its SEND and its RECV at the head of their
// queues; with capacity n, up to n SENDs of an ordered pair of ranks complete before their RECVs.
// The channel model (ir/channel.h) therefore follows from which ranks share a communicator.
// Collectives have no queue: the k-th collective of a rank is matched with the k-th of every other.
//
// There is no background thread: the rank that posts the last missing part moves the data for all.

namespace pipewright::comms {

// One rank's part of a transfer or a collective.
class Operation {
 public:
  virtual ~Operation() = default;
  virtual std::string describe() const = 0;  // "rank 1: SEND to rank 0, tag 0, 4 x Float"

  bool done() const { return done_.load(std::memory_order_acquire); }
  // Blocks until the operation completes; returns false if `deadline` passes first. Polls for
  // `spin`, yielding to other threads, before it sleeps: waking a thread costs more than most
  // messages. Any thread.
  bool wait_until(std::chrono::steady_clock::time_point deadline, std::chrono::microseconds spin);
  // The error that it completed with; null on success. Valid only once done().
  std::exception_ptr error() const { return error_; }

 private:
  friend class Mailboxes;
  void finish(std::exception_ptr error);

  std::atomic<bool> done_ = false;
  std::exception_ptr error_;  // written once, before done_
  std::mutex mutex_;
  std::condition_variable finished_;
};

// Moves the data of matched operations. Called with the mailboxes locked, on the thread that posts;
// an exception fails the whole group.
class Carrier {
 public:
  virtual ~Carrier() = default;
  // Copies the data of `send`, which completes before its RECV.
  virtual void buffer(Operation& send) = 0;
  virtual void deliver(Operation& send, Operation& receive) = 0;
  // `parts` contains the part of each rank, in the order of ranks. Throws if they do not match.
  virtual void collect(std::span<const std::shared_ptr<Operation>> parts) = 0;
};

// Thread-safe; posting does not block. A failure is final: every pending operation completes with
// an error that names the cause and all pending operations, and posting throws from then on.
class Mailboxes {
 public:
  // `name` appears in errors.
  Mailboxes(std::string name, int num_ranks, ir::ChannelCapacity capacity,
            std::unique_ptr<Carrier> carrier);

  int num_ranks() const { return static_cast<int>(queues_.size()); }

  // Ranks must be in range, and `from` must not be `to`. Throws std::runtime_error if the group has
  // failed.
  void post_send(std::shared_ptr<Operation> send, int from, int to);
  void post_receive(std::shared_ptr<Operation> receive, int from, int to);
  void post_collective(std::shared_ptr<Operation> part, int rank);

  // Fails the group. Only the first call has an effect.
  void fail(const std::string& cause);

 private:
  struct Queued {
    std::shared_ptr<Operation> operation;
    bool is_send;
    int peer;
  };
  using Buffered = std::deque<std::shared_ptr<Operation>>;

  Buffered& buffered(int from, int to);
  void throw_if_failed(const Operation& operation) const;
  void advance(int rank);
  bool advance_head(int rank, std::vector<int>* unblocked);
  bool carry(std::span<const std::shared_ptr<Operation>> operations, auto&& move);
  void fail_locked(const std::string& cause);

  const std::string name_;
  const ir::ChannelCapacity capacity_;
  const std::unique_ptr<Carrier> carrier_;

  std::mutex mutex_;
  std::string cause_;                          // of the failure; empty before one
  std::vector<std::deque<Queued>> queues_;     // by rank
  std::vector<Buffered> buffered_;             // [from * ranks + to]: SENDs completed, not received
  std::vector<uint64_t> collectives_of_rank_;  // number posted by each rank
  std::map<uint64_t, std::vector<std::shared_ptr<Operation>>> collectives_;  // by number: by rank
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_THREADS_MAILBOXES_H_
