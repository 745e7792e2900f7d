#ifndef PIPEWRIGHT_TESTS_DEVICE_RACES_H_
#define PIPEWRIGHT_TESTS_DEVICE_RACES_H_

#include <string>

#include "tests/device/machine.h"

// A race detector with vector clocks (Mattern 1989; FastTrack, Flanagan and Freund 2009). Two
// accesses to the same bytes, at least one of them a write, race unless stream order, event waits,
// meetings or the host order one before the other. It finds a race in whatever order the operations
// ran, so one run suffices.

namespace pipewright::testdevice {

// Raises `to` to the maximum of both.
void merge(Clock& to, const Clock& from);
// The same with what is ordered before an event that has been reached.
void merge(Clock& to, const Event& event);

// Advances the stream's clock to its next operation, which is about to run. Clocks advance when
// operations run, not when they are issued: only then is everything known that comes before, for
// example what a peer did before its part of a meeting.
void advance_clock(Stream& stream);

// Checks `use` by the operation that `stream` is about to run, and remembers it.
void check_use(const Stream& stream, const Use& use, const std::string& name);

}  // namespace pipewright::testdevice

#endif  // PIPEWRIGHT_TESTS_DEVICE_RACES_H_
