#ifndef PIPEWRIGHT_TESTS_DEVICE_SCHEDULER_H_
#define PIPEWRIGHT_TESTS_DEVICE_SCHEDULER_H_

#include <chrono>
#include <functional>
#include <string>

#include "tests/device/machine.h"

// Decides when queued operations run. A correct program gets the same results in any order that
// streams, events and meetings allow; this chooses among them by the seed of the run:
//
//   seed 0   nothing runs before a host thread waits for it, and then only what it needs
//   others   each stream is late, sometimes eager or always eager, which changes now and then;
//            what a waiting host needs runs in random order, mixed with other work
//
// Late streams show a consumer that does not wait; eager ones show memory that is overwritten too
// early. All functions expect the machine's mutex to be held.

namespace pipewright::testdevice {

// Queues an operation, and returns its position in the stream.
size_t issue(Stream& stream, Operation operation);
// Records an event after what has been issued to the stream.
Event record_event(Stream& stream);
void wait_event(Stream& stream, const Event& event);

// Lets the streams of a device run by themselves, as their seed wants. Called whenever its host
// thread issues something.
void drift(int device);
double draw_eagerness(int device);

// Blocks the host thread until `stream` has run `until` operations. Throws std::runtime_error on a
// deadlock, with the operation that each stream is at.
//
// Ranks that are threads (RankScope, device.h) wait until all of them wait, and then one of them
// runs what the seed chooses. So the order does not depend on how fast threads are, the same seed
// gives the same bits, and a deadlock is detected exactly.
void run_until(Lock& lock, Stream& stream, size_t until);
// Blocks a rank until `is_over`, which another rank makes true outside of the device and announces
// by announce(), or until `deadline`. Meanwhile the rank counts as one that waits. Returns whether
// it is over.
bool wait_elsewhere(Lock& lock, const std::function<bool()>& is_over,
                    std::chrono::steady_clock::time_point deadline);
// Blocks until all that has been issued on the device has run. Any thread, of which the scheduler
// then knows nothing.
void await_idle(Lock& lock, int device);
// Wakes blocked ranks, which look again.
void announce();
// Whether the stream has run `until` operations, without blocking. Runs at most one operation, now
// and then, because a device makes progress while a host polls it.
bool has_reached(Stream& stream, size_t until);
// Runs what it can of what `stream` needs to run `until` operations; returns whether that suffices.
bool try_to_reach(Stream& stream, size_t until);

// Counts a host synchronisation by `caller`; throws std::runtime_error if they are forbidden.
void count_host_sync(const std::string& caller);
// A host synchronisation: counts it, blocks until `event`, and throws the error of a kernel if one
// has failed.
void synchronize_host(Lock& lock, const std::string& caller, const Event& event);
void throw_sticky_error();

}  // namespace pipewright::testdevice

#endif  // PIPEWRIGHT_TESTS_DEVICE_SCHEDULER_H_
