#ifndef PIPEWRIGHT_TESTS_COMMS_LATE_DEVICE_H_
#define PIPEWRIGHT_TESTS_COMMS_LATE_DEVICE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <functional>

// A device that no machine has, to test what is said to streams and events: c10's PrivateUse1, with
// memory of the host, whose work is put off as long as the rules allow. A kernel runs only when
// somebody synchronizes with its stream, or when a stream that must wait for an event comes that
// far. Where an event is missing, data is not there yet, every time.

namespace pipewright::tests {

inline const c10::Device kLateDevice(c10::DeviceType::PrivateUse1, 0);

// Makes a new stream the current one of this thread.
void use_new_stream();
// A kernel on the current stream of this thread.
void launch(std::function<void()> kernel);
// Runs all of the current stream, and whatever it must wait for.
void synchronize();

// The memory of a tensor on the device, as one of the host.
at::Tensor on_host(const at::Tensor& tensor);

// While it is set, no stream waits for an event: what is tested must go wrong.
void ignore_events(bool ignore);
// How often an allocator was told that a stream uses its memory.
int told_of_use();

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_COMMS_LATE_DEVICE_H_
