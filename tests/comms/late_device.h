#ifndef PIPEWRIGHT_TESTS_COMMS_LATE_DEVICE_H_
#define PIPEWRIGHT_TESTS_COMMS_LATE_DEVICE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <functional>

// A simulated device for testing the use of streams and events on any machine. It is c10's
// PrivateUse1 backend with host memory, and runs its work as late as the rules allow: a kernel runs
// only when its stream is synchronized, or when another stream reaches a wait for an event recorded
// after it. A missing event therefore produces a wrong result every time.

namespace pipewright::tests {

inline const c10::Device kLateDevice(c10::DeviceType::PrivateUse1, 0);

// Creates a stream and makes it this thread's current one.
void use_new_stream();
// Enqueues a kernel on this thread's current stream.
void launch(std::function<void()> kernel);
// Runs everything on the current stream, and what that waits for.
void synchronize();

// A host tensor that shares the memory of a tensor on the device.
at::Tensor on_host(const at::Tensor& tensor);

// While set, streams ignore events, so that tests can show that they would notice.
void ignore_events(bool ignore);
// How often the allocator was told that a stream uses its memory (recordDataPtrOnStream).
int num_uses_recorded();

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_COMMS_LATE_DEVICE_H_
