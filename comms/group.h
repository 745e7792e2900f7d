#ifndef PIPEWRIGHT_COMMS_GROUP_H_
#define PIPEWRIGHT_COMMS_GROUP_H_

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pipewright/comms/collective_log.h"
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
// Members must call the same collectives on the same sizes. If wait() takes longer than a second,
// the watcher of the failure domain compares what they have called, and if it differs, the world
// fails with an error that names both.
class Group final : public c10d::Backend {
 public:
  // Creates the backend, which may block. `members` are world ranks, by rank in the group.
  // `timeout` is the backend's.
  Group(std::string name, int rank, std::vector<int> members, MakeBackend make_backend,
        std::chrono::milliseconds timeout, std::weak_ptr<FailureDomain> failures);
  ~Group() override;

  const std::vector<int>& members() const { return members_; }
  // What this member has called. Thread-safe, and may outlive the group.
  const std::shared_ptr<CollectiveLog>& log() const { return log_; }
  // Waits for the work of a collective; while it does, log() says so. Stays in that state if the
  // wait fails. One that lasts until the timeout is a hang of the world. Throws std::runtime_error
  // with the first cause if the world has failed, or what work.wait() throws. Any thread.
  void wait(c10d::Work& work);
  // Replaces the backend. Collective over the members, and may block.
  void connect_again(int generation);
  // The number of the World::reset() that has connected the group last; 0 if none has.
  int generation() const;

  // Publishes `message` as a failure of this rank, and aborts all groups of the world. To be called
  // before an exception leaves a collective that the other members will wait in.
  void fail(const std::string& message);
  // Ends pending operations. Only the first call since connect_again() has an effect.
  void abort() override;
  void shutdown() override;
  // Called by c10 when the last reference is dropped: weak pointers, as Groups has, put off the
  // destructor.
  void release_resources() override;

  using Tensor = at::Tensor;
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;
  using Sizes = std::vector<int64_t>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using OptionsPtr = c10::intrusive_ptr<c10d::Backend::Options>;

#define PIPEWRIGHT_FORWARD(op, parameters, arguments) \
  WorkPtr op parameters override { return backend()->op arguments; }
#define PIPEWRIGHT_COLLECTIVE(op, parameters, arguments, input, output)       \
  WorkPtr op parameters override {                                            \
    const BackendPtr backend = this->backend();                               \
    const int64_t number = log_->add(#op, first_of(input), first_of(output)); \
    return issued(number, backend->op arguments);                             \
  }
  PIPEWRIGHT_COLLECTIVE(broadcast, (Tensors & a, const c10d::BroadcastOptions& o), (a, o), a, a)
  PIPEWRIGHT_COLLECTIVE(allreduce, (Tensors & a, const c10d::AllreduceOptions& o), (a, o), a, a)
  PIPEWRIGHT_COLLECTIVE(allreduce_sparse, (Tensors & a, const c10d::AllreduceOptions& o), (a, o), a,
                        a)
  PIPEWRIGHT_COLLECTIVE(allreduce_coalesced,
                        (Tensors & a, const c10d::AllreduceCoalescedOptions& o), (a, o), a, a)
  PIPEWRIGHT_COLLECTIVE(reduce, (Tensors & a, const c10d::ReduceOptions& o), (a, o), a, a)
  PIPEWRIGHT_COLLECTIVE(allgather, (Lists & a, Tensors& b, const c10d::AllgatherOptions& o),
                        (a, b, o), b, b)
  PIPEWRIGHT_COLLECTIVE(_allgather_base, (Tensor & a, Tensor& b, const c10d::AllgatherOptions& o),
                        (a, b, o), b, a)
  PIPEWRIGHT_COLLECTIVE(allgather_coalesced,
                        (Lists & a, Tensors& b, const c10d::AllgatherOptions& o), (a, b, o), b, b)
  PIPEWRIGHT_COLLECTIVE(allgather_into_tensor_coalesced,
                        (Tensors & a, Tensors& b, const c10d::AllgatherOptions& o), (a, b, o), b, a)
  PIPEWRIGHT_COLLECTIVE(gather, (Lists & a, Tensors& b, const c10d::GatherOptions& o), (a, b, o), b,
                        b)
  PIPEWRIGHT_COLLECTIVE(scatter, (Tensors & a, Lists& b, const c10d::ScatterOptions& o), (a, b, o),
                        a, a)
  PIPEWRIGHT_COLLECTIVE(reduce_scatter,
                        (Tensors & a, Lists& b, const c10d::ReduceScatterOptions& o), (a, b, o), a,
                        a)
  PIPEWRIGHT_COLLECTIVE(_reduce_scatter_base,
                        (Tensor & a, Tensor& b, const c10d::ReduceScatterOptions& o), (a, b, o), b,
                        a)
  PIPEWRIGHT_COLLECTIVE(reduce_scatter_tensor_coalesced,
                        (Tensors & a, Tensors& b, const c10d::ReduceScatterOptions& o), (a, b, o),
                        b, a)
  PIPEWRIGHT_COLLECTIVE(alltoall, (Tensors & a, Tensors& b, const c10d::AllToAllOptions& o),
                        (a, b, o), b, a)
  PIPEWRIGHT_COLLECTIVE(alltoall_base,
                        (Tensor & a, Tensor& b, Sizes& to, Sizes& from,
                         const c10d::AllToAllOptions& o),
                        (a, b, to, from, o), b, a)
  PIPEWRIGHT_FORWARD(send, (Tensors & a, int to, int tag), (a, to, tag))
  PIPEWRIGHT_FORWARD(recv, (Tensors & a, int from, int tag), (a, from, tag))
  PIPEWRIGHT_FORWARD(recvAnysource, (Tensors & a, int tag), (a, tag))
  WorkPtr barrier(const c10d::BarrierOptions& o) override {
    const BackendPtr backend = this->backend();
    const int64_t number = log_->add("barrier", {}, {});
    return issued(number, backend->barrier(o));
  }
  PIPEWRIGHT_FORWARD(endCoalescing, (), ())
#undef PIPEWRIGHT_COLLECTIVE
#undef PIPEWRIGHT_FORWARD

  void startCoalescing() override { backend()->startCoalescing(); }
  BackendPtr split(const StorePtr& store, const std::vector<int>& ranks,
                   const OptionsPtr& options) override {
    return backend()->split(store, ranks, options);
  }
  BackendPtr merge(const StorePtr& store, const OptionsPtr& options, const int& rank,
                   const int& size) override {
    return backend()->merge(store, options, rank, size);
  }
  BackendPtr shrink(const Sizes& without, int flags, const OptionsPtr& options) override {
    return backend()->shrink(without, flags, options);
  }
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override {
    backend()->registerOnCompletionHook(std::move(hook));
  }
  const std::string getBackendName() const override { return backend()->getBackendName(); }
  OptionsPtr getBackendOptions() override { return backend()->getBackendOptions(); }
  bool supportsSplitting() const override { return backend()->supportsSplitting(); }
  bool supportsCoalescing() const override { return backend()->supportsCoalescing(); }
  bool supportsTimeEstimation() const override { return backend()->supportsTimeEstimation(); }
  bool supportsShrinking() const override { return backend()->supportsShrinking(); }
  bool supportsTensorAlloc(c10::DeviceIndex device) override {
    return backend()->supportsTensorAlloc(device);
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool all) override {
    backend()->monitoredBarrier(options, all);
  }
  void setTimeout(std::chrono::milliseconds timeout) override { backend()->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { backend()->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return backend()->getSequenceNumberForGroup(); }
  void waitForPendingWorks() override { backend()->waitForPendingWorks(); }
  void enableCollectivesTiming() override { backend()->enableCollectivesTiming(); }
  void eagerConnectSingleDevice(at::Device device) override {
    backend()->eagerConnectSingleDevice(device);
  }
  c10d::ErrorType getError() override { return backend()->getError(); }
  std::shared_ptr<c10::Allocator> getMemAllocator() override {
    return backend()->getMemAllocator();
  }
  Tensor allocateTensor(long size, at::TensorOptions options) override {
    return backend()->allocateTensor(size, options);
  }

 private:
  static at::Tensor first_of(const Tensor& tensor) { return tensor; }
  static at::Tensor first_of(const Tensors& tensors) {
    return tensors.empty() ? Tensor() : tensors[0];
  }
  BackendPtr make(const std::string& name) const;
  WorkPtr issued(int64_t number, WorkPtr work);
  void end();
  // Throws std::runtime_error if the group could not be connected again.
  BackendPtr backend() const;

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

// Waits for `work`, a collective of `group`. If it never ends, the report of the hang names it.
void wait(c10d::Backend& group, c10d::Work& work);

// Group::fail() of `group`, or abort() if it is a backend of another kind.
void fail(c10d::Backend& group, const std::string& message);

// Group::generation() of `group`, or 0 if it is a backend of another kind.
int generation_of(const c10d::Backend& group);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_GROUP_H_
