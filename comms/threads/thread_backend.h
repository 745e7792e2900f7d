#ifndef PIPEWRIGHT_COMMS_THREADS_THREAD_BACKEND_H_
#define PIPEWRIGHT_COMMS_THREADS_THREAD_BACKEND_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/comms/threads/mailboxes.h"
#include "pipewright/comms/threads/threads.h"
#include "pipewright/comms/world.h"

namespace pipewright::comms {

struct TensorOperation;

inline constexpr const char* kThreadBackend = "thread";

// The c10d backend of one rank that is a thread; threads.h describes its semantics. For one thread
// at a time. Implements send, recv, broadcast, allreduce, allgather, _allgather_base,
// _reduce_scatter_base, their coalesced forms and barrier, with the reductions SUM, AVG, PRODUCT,
// MIN and MAX. Posting does not wait; Work::wait() does.
class ThreadBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  ThreadBackend(std::shared_ptr<Mailboxes> mailboxes, int rank, const ThreadOptions& options);

  const std::string getBackendName() const override { return kThreadBackend; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override { options_.timeout = timeout; }
  bool supportsCoalescing() const override { return false; }

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
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  // Ends every pending operation of every rank of the group with an error.
  void abort() override;

 private:
  struct Call;
  // Throws std::invalid_argument if the operation cannot be posted.
  void check(const TensorOperation& operation) const;
  // `when_done` runs once, in the first wait() that succeeds.
  WorkPtr post(Call call, std::function<void()> when_done = nullptr);

  const std::shared_ptr<Mailboxes> mailboxes_;
  ThreadOptions options_;
};

// `make`, but for groups of one rank in a world of more: these have nobody to connect to, so they
// need no communicator, with its threads, its memory and its start, but are ThreadBackends. Of
// c10d's operations these have no reduction by PREMUL_SUM, no all-to-all, gather and scatter.
MakeBackend with_local_groups(MakeBackend make, int world_size, std::chrono::milliseconds timeout);

// The world of a process, whose store is that of connect_store(), with the groups that `backends`
// makes over it, but local groups of one rank.
World world_with_local_groups(const Environment& environment, std::chrono::milliseconds timeout,
                              const std::function<MakeBackend(const StorePtr& store)>& backends);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_THREADS_THREAD_BACKEND_H_
