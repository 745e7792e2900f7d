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
  double at = 0;     // when it was so, by the first clock
};

// Collective over `size` ranks: by how much this rank's clock differs from rank 0's. Ranks with
// other clocks than rank 0's ask it for the time through the store, several times; the fastest
// answer decides (D. Mills, Internet time synchronization, 1991). `key` is a prefix in the store
// that nothing else uses. Throws std::runtime_error if the world fails, or if a rank does not call
// it within `timeout`.
ClockOffset clock_offset(World& world, const std::string& key, int rank, int size,
                         const NamedClock& clock, std::chrono::milliseconds timeout);

// The other clock's time when the first one says `time`, if one of them has gone faster at a
// constant rate between two comparisons. For a time between them it is wrong by at most the larger
// of their errors:
//
//   const ClockOffset start = clock_offset(world, "start", ...);
//   ...  // a while later
//   const ClockOffset end = clock_offset(world, "end", ...);
//   to_other_clock(time, start, end);
double to_other_clock(double time, const ClockOffset& start, const ClockOffset& end);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_CLOCK_OFFSET_H_
