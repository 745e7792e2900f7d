#ifndef PIPEWRIGHT_TESTS_DEVICE_FALLBACK_H_
#define PIPEWRIGHT_TESTS_DEVICE_FALLBACK_H_

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

// The device's implementation of every operator that is not composed of others: queues a kernel
// that runs the host's operator on the same memory. What the kernel reads and writes follows from
// the alias annotations of the operator's schema.
//
// New outputs are allocated at once, so their shapes must be known before the kernel has run. Where
// the schema does not tell, the host's operator runs at once on dummies of the same sizes.
// Operators whose result sizes depend on values synchronise the host, as on CUDA.
//
// Random numbers: the dry run advances the device's generator when the operator is issued, as CUDA
// does, and the kernel uses a copy of the state before. So results do not depend on the order in
// which kernels run, and equal the host's for equal seeds.

namespace pipewright::testdevice {

void run_on_device(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace pipewright::testdevice

#endif  // PIPEWRIGHT_TESTS_DEVICE_FALLBACK_H_
