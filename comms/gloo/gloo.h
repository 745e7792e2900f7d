#ifndef PIPEWRIGHT_COMMS_GLOO_GLOO_H_
#define PIPEWRIGHT_COMMS_GLOO_GLOO_H_

#include "pipewright/comms/world.h"

namespace pipewright::comms {

// Creates the world of ranks that are processes and communicate CPU tensors over TCP, with the Gloo
// backend of torch.distributed. The network interface is that of GLOO_SOCKET_IFNAME if set,
// loopback if the master address is 127.0.0.1 or localhost, and otherwise that of the host name.
//
//   World world = gloo_world(read_environment());
//
// Properties of Gloo that callers must know: messages match by tag, in any order; a wait() that
// times out closes the connection permanently; isCompleted() of a RECV stays false until wait(),
// and that of a SEND until then or until 16 KiB of later SENDs follow. Writing to a rank that has
// exited raises SIGPIPE, which this call ignores process-wide unless a handler is already
// installed. Blocks until the store is reachable and throws after `timeout`, which is also the
// timeout of operations. A rank that fails while it connects, for example because
// GLOO_SOCKET_IFNAME is not an interface of its host (std::invalid_argument), ends all others with
// its error. A rank that dies before it creates a group, or in doing so, fails the world, which
// ends the others' make_group().
World gloo_world(const Environment& environment,
                 std::chrono::milliseconds timeout = kDefaultTimeout);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_GLOO_GLOO_H_
