#ifndef PIPEWRIGHT_TESTS_DEVICE_BACKEND_H_
#define PIPEWRIGHT_TESTS_DEVICE_BACKEND_H_

#include <memory>
#include <optional>
#include <vector>

#include "pipewright/comms/world.h"
#include "tests/device/communicator.h"

// Process groups on the test device with the rules of ProcessGroupNCCL, and worlds of such groups.
//
//   std::vector<comms::World> worlds = device_worlds(4);  // worlds[r] is for the thread of rank r,
//                                                         // which uses device(r)

namespace pipewright::testdevice {

struct BackendOptions {
  // After this, the watchdog reports an operation that cannot complete as an error of the run
  // (device.h) and aborts this rank's part.
  std::chrono::milliseconds timeout{std::chrono::seconds(60)};
  // PyTorch's watchdog ends the process some time, by default a minute, after a peer has aborted a
  // communicator on which this rank waits, unless TORCH_NCCL_ASYNC_ERROR_HANDLING is 0. Here that
  // is an error of the run. nullopt: never.
  std::optional<std::chrono::milliseconds> ends_process_after = std::nullopt;
  // Whether a Work keeps its tensors until wait(), as PyTorch's NCCL backend does today (it once
  // called recordStream instead). Without, a caller that frees a tensor before it has waited is
  // reported as a race.
  bool stash = false;
  // Whether SENDs and RECVs call recordStream() for their tensors, as PyTorch's NCCL backend does:
  // memory that is freed is not used again before the channel has done all that was queued by then.
  bool records_transfers = true;
};

// A c10d backend of one rank:
// - Posting and wait() never block the host. wait() orders the caller's current stream after the
//   operation; given a timeout, it blocks the host, which counts as a synchronisation.
// - Operations run on a stream of the communicator, after what was queued on the current stream.
// - A transfer needs both ends (rendezvous). Operations meet in issue order; tags are ignored.
// - Operations that do not match are an error on the rank that issues the second.
// - startCoalescing() .. endCoalescing() makes several operations one, so two ranks can send to
//   each other on one communicator.
// - abort(), or destruction before the end, leaves garbage in what is in flight; shutdown() waits.
//   abort() blocks until the rank's device is idle.
class DeviceBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  DeviceBackend(std::shared_ptr<Member> member, int rank, int size, const BackendOptions& options);

  const std::string getBackendName() const override { return "late"; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  // Its wait() blocks the host, as NCCL's does.
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  void abort() override { member_->abort(); }
  void shutdown() override { member_->shutdown(); }

 private:
  WorkPtr post(c10d::OpType op, const std::string& name, Tensors reads, Tensors writes, Body body);
  WorkPtr post_transfer(c10d::OpType op, Tensors& tensors, int peer);
  // Adds the request to the group that is open, and returns null; issues it if there is none.
  WorkPtr post_request(c10d::OpType op, Request request);
  WorkPtr issue(c10d::OpType op, std::vector<Request> requests);

  const std::shared_ptr<Member> member_;
  const BackendOptions options_;
  std::optional<std::vector<Request>> group_;  // between startCoalescing() and endCoalescing()
};

// The worlds of `size` ranks that are threads; rank r uses device r. Their watchdog runs until the
// last of them and of their groups is gone.
std::vector<comms::World> device_worlds(int size, const BackendOptions& options = {});

}  // namespace pipewright::testdevice

#endif  // PIPEWRIGHT_TESTS_DEVICE_BACKEND_H_
