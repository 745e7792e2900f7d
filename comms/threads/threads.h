#ifndef PIPEWRIGHT_COMMS_THREADS_THREADS_H_
#define PIPEWRIGHT_COMMS_THREADS_THREADS_H_

#include <chrono>
#include <vector>

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

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_THREADS_THREADS_H_
