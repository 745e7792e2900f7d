#ifndef PIPEWRIGHT_COMMS_THREADS_THREADS_H_
#define PIPEWRIGHT_COMMS_THREADS_THREADS_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/comms/threads/mailboxes.h"
#include "pipewright/comms/world.h"
#include "pipewright/ir/channel.h"

// Ranks as threads of one process: tests need no sockets, and one GPU can run a whole pipeline.
//
//   std::vector<World> worlds = thread_worlds(4);  // worlds[r] is for the thread of rank r
//
// Works with CPU tensors and with any device that has streams. Operations are matched as described
// in mailboxes.h: only their order pairs a SEND with its RECV, as with NCCL. Unlike NCCL, different
// tags or sizes are an error. Reductions run in the order of ranks, so results are bitwise
// reproducible. Tensors must be contiguous.
//
// Posting never blocks the host. On a device, data moves on the current stream of the thread that
// posts last, after the streams of both ends. wait() blocks the host until the peer has posted, and
// makes the current stream wait for the rest. Inside a backward on a device that would block the
// one autograd thread that serves all ranks, so there wait() is an error. Under an Executor, ddp
// and fsdp wait outside of backwards.
//
// Posting throws std::invalid_argument for invalid tensors or peers. Every other failure fails the
// whole group, with a std::runtime_error that names the rank, its operation, its peer and all other
// pending operations.

namespace pipewright::comms {

struct ThreadOptions {
  ir::ChannelCapacity capacity = ir::kDefaultCapacity;  // 0: rendezvous
  std::chrono::milliseconds timeout{std::chrono::seconds(60)};
  std::chrono::microseconds spin{50};  // how long a wait polls before it sleeps
  StorePtr store = {};                 // of all ranks; by default a new one in memory
};

// Whether the ranks of `group` are such threads.
bool is_thread_group(const c10d::Backend& group);

// Creates the worlds of `size` ranks, one for each thread.
std::vector<World> thread_worlds(int size, const ThreadOptions& options = {});

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

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_THREADS_THREADS_H_
