#ifndef PIPEWRIGHT_COMMS_CLOCK_OFFSET_H_
#define PIPEWRIGHT_COMMS_CLOCK_OFFSET_H_

#include <chrono>
#include <functional>
#include <string>

#include "pipewright/comms/world.h"

namespace pipewright::comms {

// A clock in seconds. Clocks with the same name tell the same time.
struct NamedClock {
  std::string name;
  std::function<double()> now;
};

// The steady clock of this machine. Its name changes when the machine boots.
NamedClock steady_clock_of_machine();

// What has to be added to one clock to get the time of another.
struct ClockOffset {
  double seconds = 0;
  double error = 0;  // `seconds` is wrong by at most this
};

// Collective over `size` ranks: by how much this rank's clock differs from rank 0's. Ranks with
// other clocks than rank 0's ask it for the time through the store, several times; the fastest
// answer decides (D. Mills, Internet time synchronization, 1991). `key` is a prefix in the store
// that nothing else uses. Throws std::runtime_error if the world fails, or if a rank does not call
// it within `timeout`.
ClockOffset clock_offset(World& world, const std::string& key, int rank, int size,
                         const NamedClock& clock, std::chrono::milliseconds timeout);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_CLOCK_OFFSET_H_
