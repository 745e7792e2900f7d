#ifndef PIPEWRIGHT_EXECUTOR_GATHER_RECORDING_H_
#define PIPEWRIGHT_EXECUTOR_GATHER_RECORDING_H_

#include <chrono>
#include <string>

#include "pipewright/comms/clock_offset.h"
#include "pipewright/comms/world.h"
#include "pipewright/executor/recorder.h"

namespace pipewright::executor {

// Collective over the ranks of a program: compares their clocks, and returns the merged recordings
// on rank 0 of the program, by its clock; on other ranks an empty timeline. `clock` is the one of
// this rank's recorder, and `start` its offset from program rank 0's before the recording: the rate
// at which it has drifted since then is taken to be constant. `key` is a prefix in the store that
// nothing else uses. Throws std::runtime_error if the world fails, or if a rank does not call it
// within `timeout`.
ir::Timeline gather_recording(comms::World& world, const std::string& key,
                              const ir::Program& program, int rank, const Recorder& recorder,
                              const comms::NamedClock& clock, const comms::ClockOffset& start,
                              std::chrono::milliseconds timeout);

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_GATHER_RECORDING_H_
