#ifndef PIPEWRIGHT_EXAMPLES_STOP_SIGNAL_H_
#define PIPEWRIGHT_EXAMPLES_STOP_SIGNAL_H_

#include <c10/core/Device.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

// A run that is about to be preempted saves and stops: SIGUSR1 (Slurm's --signal=USR1@120) and
// SIGTERM (torchrun, scancel) ask for it.

namespace pipewright::examples {

// The run has been saved, and has stopped because of a signal. Not an error, and no std::exception.
struct SavedAndStopped {};

// From now on the two signals do not end this process.
void listen_for_stop();

// Collective over `ranks`, which communicate tensors of `device`: whether one of them has got such
// a signal.
bool should_stop(c10d::Backend& ranks, at::Device device);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_STOP_SIGNAL_H_
