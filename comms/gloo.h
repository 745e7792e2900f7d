#ifndef PIPEWRIGHT_COMMS_GLOO_H_
#define PIPEWRIGHT_COMMS_GLOO_H_

#include "pipewright/comms/world.h"

namespace pipewright::comms {

// Ranks as processes, tensors on the CPU, over TCP: torch's Gloo, as torch.distributed has it. The
// network interface is GLOO_SOCKET_IFNAME's where it is set, loopback where the master is
// 127.0.0.1 or localhost, else that of the host's name.
//
// What Gloo does, and callers must know: tags match in any order; an expired wait closes the
// connection for good; isCompleted() stays false until wait(). Writing to a rank that is gone
// raises SIGPIPE, which this ignores for the process unless it is handled already.
World gloo_world(const Environment& environment,
                 std::chrono::milliseconds timeout = kDefaultTimeout);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_GLOO_H_
