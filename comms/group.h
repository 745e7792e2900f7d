#ifndef PIPEWRIGHT_COMMS_GROUP_H_
#define PIPEWRIGHT_COMMS_GROUP_H_

#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pipewright/comms/collective_log.h"
#include "pipewright/comms/torch_gaps/forwarding_backend.h"
#include "pipewright/comms/world.h"

namespace pipewright::comms {

// A process group that survives a failure: a handle that forwards every call to the backend that
// MakeBackend made, and replaces that backend after World::reset(). fsdp, ddp, channels and
// trainers keep the handle, so none of them needs to know about a reset.
//
// A handle belongs to the failure domain of its world. If the world is healthy when the last
// reference is dropped, the backend is shut down, which lets pending operations finish; only
// failures abort. Like its backend for one thread at a time, except abort(), which is for any
// thread.
//
// Members must call the same collectives on the same sizes. If the wait for one takes longer than a
// second, the watcher of the failure domain compares what they have called, and if it differs, the
// world fails with an error that names both. While the wait() of a collective's work lasts, log()
// says so, and still does after it has failed. One that lasts until the timeout is a hang of the
// world. It throws std::runtime_error with the first cause if the world has failed, or what the
// backend's work throws; any thread may call it.
class Group final : public ForwardingBackend {
 public:
  // Creates the backend, which may block. `members` are world ranks, by rank in the group.
  // `timeout` is the backend's.
  Group(std::string name, int rank, std::vector<int> members, MakeBackend make_backend,
        std::chrono::milliseconds timeout, std::weak_ptr<FailureDomain> failures);
  ~Group() override;

  const std::vector<int>& members() const { return members_; }
  // What this member has called. Thread-safe, and may outlive the group.
  const std::shared_ptr<CollectiveLog>& log() const { return log_; }
  // Replaces the backend. Collective over the members, and may block.
  void connect_again(int generation);
  // The number of the World::reset() that has connected the group last; 0 if none has.
  int generation() const;

  // Publishes `message` as a failure of this rank, and aborts all groups of the world. To be called
  // before an exception leaves a collective that the other members will wait in.
  void fail(const std::string& message);
  // Ends pending operations. Only the first call since connect_again() has an effect. Returns when
  // the backend has been aborted, or after a second: over NCCL it may never be. What the backend's
  // abort() throws is a warning of c10.
  void abort() override;
  // Starts abort(); ready when it has ended.
  std::future<void> begin_abort();
  void shutdown() override;
  // Called by c10 when the last reference is dropped: weak pointers, as Groups has, put off the
  // destructor.
  void release_resources() override;

#define PW_COLLECTIVE(op, parameters, arguments, input, output)               \
  WorkPtr op parameters override {                                            \
    const BackendPtr backend = inner();                                       \
    const int64_t number = log_->add(#op, first_of(input), first_of(output)); \
    return issued(number, backend->op arguments);                             \
  }
#include "pipewright/comms/torch_gaps/collectives.def"
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return inner()->send(tensors, to, tag);
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return inner()->recv(tensors, from, tag);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return inner()->recvAnysource(tensors, tag);
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    const BackendPtr backend = inner();
    const int64_t number = log_->add("barrier", {}, {});
    return issued(number, backend->barrier(options));
  }
  WorkPtr endCoalescing() override { return inner()->endCoalescing(); }

 private:
  static at::Tensor first_of(const Tensor& tensor) { return tensor; }
  static at::Tensor first_of(const Tensors& tensors) {
    return tensors.empty() ? Tensor() : tensors[0];
  }
  // A collective of this group.
  class Issued;

  BackendPtr make(const std::string& name) const;
  WorkPtr issued(int64_t number, WorkPtr work);
  void end();
  // Throws std::runtime_error if the group could not be connected again.
  BackendPtr inner() const override;

  const std::string name_;
  const std::vector<int> members_;
  const MakeBackend make_backend_;
  const std::chrono::milliseconds timeout_;
  const std::weak_ptr<FailureDomain> failures_;
  const std::shared_ptr<CollectiveLog> log_;  // shared with Groups while it reads it
  mutable std::mutex mutex_;
  BackendPtr backend_;
  bool aborted_ = false;
  int generation_ = 0;
};

// The groups of one rank, in the order in which they were made. Thread-safe.
class Groups {
 public:
  void add(const c10::intrusive_ptr<Group>& group);
  // Aborts all groups at once, as an abort over NCCL may have to wait for the others. Takes at most
  // a second.
  void abort();
  // Connects the groups that still exist again, one after the other.
  void connect_again(int generation);
  std::vector<GroupState> states();
  // The first CollectiveLog::difference() of the groups. Other threads may end their waits and drop
  // their groups meanwhile, however long the store takes. For one thread at a time.
  std::string difference(c10d::Store& store);

 private:
  std::vector<c10::intrusive_ptr<Group>> alive();
  std::vector<std::shared_ptr<CollectiveLog>> logs();

  struct Known {
    c10::weak_intrusive_ptr<Group> group;
    std::weak_ptr<CollectiveLog> log;
  };
  std::mutex mutex_;
  std::vector<Known> groups_;
};

// Group::members() of `group`, or its own ranks, from 0, if it is a backend of another kind.
std::vector<int> members_of(const c10d::Backend& group);

// Group::fail() of `group`, or abort() if it is a backend of another kind.
void fail(c10d::Backend& group, const std::string& message);

// Group::generation() of `group`, or 0 if it is a backend of another kind.
int generation_of(const c10d::Backend& group);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_GROUP_H_
