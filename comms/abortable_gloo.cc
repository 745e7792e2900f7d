#include "pipewright/comms/abortable_gloo.h"

#include <ATen/ops/empty.h>

#include <limits>
#include <utility>

namespace pipewright::comms {

void AbortableGloo::abort() {
  waits_->abort();
  close_connections();
}

// A receive that expires makes Gloo close every connection of the group. A connection that is
// closed already refuses the receive, hence a try per peer.
void AbortableGloo::close_connections() {
  constexpr int kUnusedTag = std::numeric_limits<int>::max();
  for (int peer = 0; peer < getSize(); ++peer) {
    if (peer == getRank()) continue;
    Tensors nothing = {at::empty({1}, at::kByte)};
    try {
      ProcessGroupGloo::recv(nothing, peer, kUnusedTag)->wait(std::chrono::milliseconds(1));
    } catch (const std::exception&) {
    }
  }
}

AbortableGloo::WorkPtr AbortableGloo::send(Tensors& tensors, int to, int tag) {
  return waits_->transfer(ProcessGroupGloo::send(tensors, to, tag));
}

AbortableGloo::WorkPtr AbortableGloo::recv(Tensors& tensors, int from, int tag) {
  return waits_->transfer(ProcessGroupGloo::recv(tensors, from, tag));
}

AbortableGloo::WorkPtr AbortableGloo::recvAnysource(Tensors& tensors, int tag) {
  return waits_->transfer(ProcessGroupGloo::recvAnysource(tensors, tag));
}

// torch builds some collectives from others, which are abortable already.
AbortableGloo::WorkPtr AbortableGloo::abortable(WorkPtr work) {
  const bool runs_on_its_thread = dynamic_cast<AsyncWork*>(work.get()) != nullptr;
  return runs_on_its_thread ? waits_->collective(std::move(work)) : std::move(work);
}

}  // namespace pipewright::comms
