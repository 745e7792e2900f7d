#ifndef PIPEWRIGHT_COMMS_GROUP_H_
#define PIPEWRIGHT_COMMS_GROUP_H_

#include <memory>
#include <mutex>
#include <string>
#include <vector>

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
class Group final : public c10d::Backend {
 public:
  // Creates the backend, which may block. `members` are world ranks, by rank in the group.
  Group(std::string name, int rank, std::vector<int> members, MakeBackend make_backend,
        std::weak_ptr<FailureDomain> failures);
  ~Group() override;

  const std::vector<int>& members() const { return members_; }
  // Replaces the backend. Collective over the members, and may block.
  void connect_again(int generation);

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
  PIPEWRIGHT_FORWARD(broadcast, (Tensors & a, const c10d::BroadcastOptions& o), (a, o))
  PIPEWRIGHT_FORWARD(allreduce, (Tensors & a, const c10d::AllreduceOptions& o), (a, o))
  PIPEWRIGHT_FORWARD(allreduce_sparse, (Tensors & a, const c10d::AllreduceOptions& o), (a, o))
  PIPEWRIGHT_FORWARD(allreduce_coalesced, (Tensors & a, const c10d::AllreduceCoalescedOptions& o),
                     (a, o))
  PIPEWRIGHT_FORWARD(reduce, (Tensors & a, const c10d::ReduceOptions& o), (a, o))
  PIPEWRIGHT_FORWARD(allgather, (Lists & a, Tensors& b, const c10d::AllgatherOptions& o), (a, b, o))
  PIPEWRIGHT_FORWARD(_allgather_base, (Tensor & a, Tensor& b, const c10d::AllgatherOptions& o),
                     (a, b, o))
  PIPEWRIGHT_FORWARD(allgather_coalesced, (Lists & a, Tensors& b, const c10d::AllgatherOptions& o),
                     (a, b, o))
  PIPEWRIGHT_FORWARD(allgather_into_tensor_coalesced,
                     (Tensors & a, Tensors& b, const c10d::AllgatherOptions& o), (a, b, o))
  PIPEWRIGHT_FORWARD(gather, (Lists & a, Tensors& b, const c10d::GatherOptions& o), (a, b, o))
  PIPEWRIGHT_FORWARD(scatter, (Tensors & a, Lists& b, const c10d::ScatterOptions& o), (a, b, o))
  PIPEWRIGHT_FORWARD(reduce_scatter, (Tensors & a, Lists& b, const c10d::ReduceScatterOptions& o),
                     (a, b, o))
  PIPEWRIGHT_FORWARD(_reduce_scatter_base,
                     (Tensor & a, Tensor& b, const c10d::ReduceScatterOptions& o), (a, b, o))
  PIPEWRIGHT_FORWARD(reduce_scatter_tensor_coalesced,
                     (Tensors & a, Tensors& b, const c10d::ReduceScatterOptions& o), (a, b, o))
  PIPEWRIGHT_FORWARD(alltoall, (Tensors & a, Tensors& b, const c10d::AllToAllOptions& o), (a, b, o))
  PIPEWRIGHT_FORWARD(alltoall_base,
                     (Tensor & a, Tensor& b, Sizes& to, Sizes& from,
                      const c10d::AllToAllOptions& o),
                     (a, b, to, from, o))
  PIPEWRIGHT_FORWARD(send, (Tensors & a, int to, int tag), (a, to, tag))
  PIPEWRIGHT_FORWARD(recv, (Tensors & a, int from, int tag), (a, from, tag))
  PIPEWRIGHT_FORWARD(recvAnysource, (Tensors & a, int tag), (a, tag))
  PIPEWRIGHT_FORWARD(barrier, (const c10d::BarrierOptions& o), (o))
  PIPEWRIGHT_FORWARD(endCoalescing, (), ())
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
  void end();
  // Throws std::runtime_error if the group could not be connected again.
  BackendPtr backend() const;

  const std::string name_;
  const std::vector<int> members_;
  const MakeBackend make_backend_;
  const std::weak_ptr<FailureDomain> failures_;
  mutable std::mutex mutex_;
  BackendPtr backend_;
  bool aborted_ = false;
};

// The groups of one rank, in the order in which they were made. Thread-safe.
class Groups {
 public:
  void add(const c10::intrusive_ptr<Group>& group);
  void abort();
  // Connects the groups that still exist again, one after the other.
  void connect_again(int generation);

 private:
  std::vector<c10::intrusive_ptr<Group>> alive();

  std::mutex mutex_;
  std::vector<c10::weak_intrusive_ptr<Group>> groups_;
};

// Group::fail() of `group`, or abort() if it is a backend of another kind.
void fail(c10d::Backend& group, const std::string& message);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_GROUP_H_
