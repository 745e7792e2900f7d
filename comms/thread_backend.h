#ifndef PIPEWRIGHT_COMMS_THREAD_BACKEND_H_
#define PIPEWRIGHT_COMMS_THREAD_BACKEND_H_

#include <memory>
#include <string>
#include <vector>

#include "pipewright/comms/mailboxes.h"
#include "pipewright/comms/world.h"

// Ranks as threads of one process: tests need no sockets, and one GPU can hold a whole pipeline.
// Host tensors and those of any device with streams; mailboxes.h says who meets whom.
//
// As with NCCL, order alone pairs a SEND with its RECV; other than NCCL, unequal tags or sizes are
// an error. Sums run in the order of the ranks: the same bits every time.
//
// On a device nothing blocks the host in posting: data moves on the current stream of the thread
// that posts last, behind both ends' streams. wait() blocks the host until the peer has posted,
// and makes the current stream wait for the rest. Inside a backward on a device it would block the
// one autograd thread that serves all ranks, so there it is an error.

namespace pipewright::comms {

struct ThreadOptions {
  ir::ChannelCapacity capacity = ir::kDefaultCapacity;  // 0: rendezvous
  std::chrono::milliseconds timeout{std::chrono::seconds(60)};
  std::chrono::microseconds spin{50};  // how long a wait polls before it sleeps
};

// One rank of a group, for one thread at a time. send, recv, broadcast, allreduce, allgather,
// _allgather_base, _reduce_scatter_base, their coalesced forms and barrier; SUM, AVG, PRODUCT, MIN,
// MAX. All tensors contiguous. Every failure is a std::runtime_error that names the rank, what it
// did, its peer, and all else that was pending.
class ThreadBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  ThreadBackend(std::shared_ptr<Mailboxes> mailboxes, int rank, const ThreadOptions& options);

  const std::string getBackendName() const override { return "thread"; }
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

  // Ends every pending operation of every rank of the group.
  void abort() override;

 private:
  struct Call;
  // `when_done` runs once, in the first wait() that succeeds.
  WorkPtr post(Call call, std::function<void()> when_done = nullptr);

  const std::shared_ptr<Mailboxes> mailboxes_;
  ThreadOptions options_;
};

std::shared_ptr<Mailboxes> make_mailboxes(const std::string& name, int num_ranks,
                                          const ThreadOptions& options = {});

// The worlds of `size` ranks, one for each thread.
std::vector<World> thread_worlds(int size, const ThreadOptions& options = {});

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_THREAD_BACKEND_H_
