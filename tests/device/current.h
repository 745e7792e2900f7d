#ifndef PIPEWRIGHT_TESTS_DEVICE_CURRENT_H_
#define PIPEWRIGHT_TESTS_DEVICE_CURRENT_H_

#include <c10/core/Stream.h>

#include "tests/device/machine.h"

// The calling thread's current device, and its current stream on each device. As with CUDA, a
// thread starts on device 0 and on the default streams.

namespace pipewright::testdevice {

int current_device();
// Returns the previous one.
int exchange_current_device(int device);
// Whether the thread has set its device. With CUDA, one that has not makes a context on device 0
// when it queries or destroys an event of another device, which costs every rank memory there.
bool has_set_device();
c10::Stream current_stream(int device);
c10::Stream exchange_current_stream(const c10::Stream& stream);

}  // namespace pipewright::testdevice

#endif  // PIPEWRIGHT_TESTS_DEVICE_CURRENT_H_
