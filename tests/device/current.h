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
c10::Stream current_stream(int device);
c10::Stream exchange_current_stream(const c10::Stream& stream);

}  // namespace pipewright::testdevice

#endif  // PIPEWRIGHT_TESTS_DEVICE_CURRENT_H_
