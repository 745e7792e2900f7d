#ifndef PIPEWRIGHT_TESTS_DEVICE_COMMUNICATOR_H_
#define PIPEWRIGHT_TESTS_DEVICE_COMMUNICATOR_H_

#include <ATen/core/Tensor.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/device/machine.h"

// An NCCL communicator on the test device: the ranks of a group, each with a stream of its own on
// its device. An operation is a meeting of these streams. Operations have no tags: only the order
// in which ranks issue them decides which ones meet.

namespace pipewright::testdevice {

using Tensors = std::vector<at::Tensor>;

// One rank's tensors in an operation, as aliases on the host.
struct Part {
  Tensors inputs, outputs;
};
// Moves the data of an operation; by rank.
using Body = std::function<void(std::map<int, Part>&)>;

// An operation as one rank issues it.
struct Request {
  std::string queue;  // the k-th requests of all ranks in the same queue meet
  int parties;
  std::string what;         // must be equal for all parties, "all-reduce SUM of 4 x Float"
  std::string description;  // for messages, "RECV of 4 x Float from rank 0"
  Tensors reads, writes;    // contiguous, on the rank's device
  Body body;
};

class Communicator;

// One rank's end of a communicator. For one thread at a time; the machine's mutex protects what it
// shares with other ranks and the watchdog.
class Member {
 public:
  Member(std::shared_ptr<Communicator> communicator, int rank, std::chrono::milliseconds timeout);
  // Aborts unless everything that was issued is done, as ~ProcessGroupNCCL does.
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  const c10::Stream& stream() const { return stream_; }
  int device() const { return stream_.device_index(); }

  // Issues requests as one operation of the stream, after what the thread's current stream has been
  // given: they complete together, in any order among themselves (ncclGroupStart). Returns the
  // operation's position in the stream. Throws std::runtime_error, naming both ends, if a request
  // does not match its counterpart, and after abort().
  size_t issue(std::vector<Request> requests);

  // Ends this rank's part of operations that have not taken place: leaves garbage in their outputs.
  // Local, like ncclCommAbort: other ranks wait on. Blocks until the rank's device is idle, as
  // ncclCommAbort may: until what other communicators of the rank wait for has come, or they have
  // been aborted too.
  void abort();
  // Blocks the host until everything that was issued is done; aborts what can never complete.
  void shutdown();
  // Why it was aborted; empty if it was not.
  std::string failure() const;

  // What NCCL reports of this end: that it waits for a peer that has aborted; empty if not.
  std::string asynchronous_error() const;
  // Called by the watchdog. Aborts if an operation has not completed within its timeout.
  void check_progress(std::chrono::steady_clock::time_point now);

 private:
  struct Issued {
    size_t position;
    std::chrono::steady_clock::time_point deadline;
    std::string description;
  };
  void abort_because(const std::string& cause);

  const std::shared_ptr<Communicator> communicator_;
  const int rank_;
  const std::chrono::milliseconds timeout_;
  const c10::Stream stream_;
  Stream& state_;
  std::deque<Issued> issued_;  // that may not be done, oldest first
  std::string failure_;
};

// What the members share.
class Communicator {
 public:
  Communicator(std::string name, std::vector<int> devices)
      : name_(std::move(name)), devices_(std::move(devices)) {}

  const std::string& name() const { return name_; }
  const std::vector<int>& devices() const { return devices_; }
  // Finds or creates the meeting of the rank's next request in its queue.
  std::shared_ptr<Meeting> match(int rank, const Request& request);
  // Whether a member has aborted its part, of which NCCL tells the others.
  bool is_broken() const { return is_broken_; }
  void set_broken() { is_broken_ = true; }

 private:
  struct Pairing {
    std::shared_ptr<Meeting> meeting;
    std::string what, description;  // of the first
    int first_rank;
    std::map<int, Part> parts;
  };
  struct Queue {
    size_t completed = 0;          // pairings that all parties have issued
    std::deque<Pairing> pairings;  // the others
    std::map<int, size_t> issued;  // by rank
  };

  const std::string name_;
  const std::vector<int> devices_;  // by rank
  std::map<std::string, Queue> queues_;
  bool is_broken_ = false;
};

}  // namespace pipewright::testdevice

#endif  // PIPEWRIGHT_TESTS_DEVICE_COMMUNICATOR_H_
