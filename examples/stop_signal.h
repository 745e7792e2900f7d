#ifndef PIPEWRIGHT_EXAMPLES_STOP_SIGNAL_H_
#define PIPEWRIGHT_EXAMPLES_STOP_SIGNAL_H_

#include <c10/core/Device.h>

#include <optional>
#include <utility>

#include "examples/late_copy.h"
#include "pipewright/comms/world.h"

// A run that is about to be preempted saves and stops: SIGUSR1 (Slurm's --signal=USR1@120) and
// SIGTERM (torchrun, scancel) ask for it.

namespace pipewright::examples {

// The run has been saved, and has stopped because of a signal. Not an error, and no std::exception.
struct SavedAndStopped {};

// From now on the two signals do not end this process.
void listen_for_stop();

// Agrees on whether one of the ranks of a group has got such a signal. On a device the host would
// wait for the step that it has just queued, so there each answer is that of the call before.
class StopVote {
 public:
  // `ranks` communicate tensors of `device`.
  StopVote(comms::BackendPtr ranks, at::Device device)
      : ranks_(std::move(ranks)), device_(device) {}
  // Collective. To be called after each step.
  bool should_stop();

 private:
  const comms::BackendPtr ranks_;
  const at::Device device_;
  std::optional<LateCopy> last_;
};

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_STOP_SIGNAL_H_
