#ifndef PIPEWRIGHT_COMMS_PROCESS_STEADY_SECONDS_H_
#define PIPEWRIGHT_COMMS_PROCESS_STEADY_SECONDS_H_

#include <chrono>

namespace pipewright::comms {

// The time of this machine's steady clock, in seconds since some moment. Recordings have this time,
// and clock_offset() compares it between machines. No LibTorch.
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_PROCESS_STEADY_SECONDS_H_
