#ifndef PIPEWRIGHT_TESTS_SUPPORT_RANKS_GROUND_H_
#define PIPEWRIGHT_TESTS_SUPPORT_RANKS_GROUND_H_

#include <c10/core/Device.h>
#include <c10/core/TensorOptions.h>

#include <vector>

#include "pipewright/comms/threads/threads.h"

// What test bodies run on. By default that is the CPU, with ranks as threads
// (comms/threads/threads.h). A binary that also links //tests/device:ground runs the same bodies on
// the test device, one device per rank, over a backend with NCCL's rules: its functions replace
// weak symbols.
//
//   std::vector<comms::World> worlds = tests::make_worlds(2);
//   run_ranks(2, [&](int rank) { at::Tensor x = at::ones({4}, tests::here()); ... });

namespace pipewright::tests {

// The device of the calling thread's rank; the CPU in a thread that is not a rank.
at::Device here();
at::TensorOptions here(at::ScalarType dtype);

// The worlds of `size` ranks. The options' capacity and spin apply only to the CPU.
std::vector<comms::World> make_worlds(int size, const comms::ThreadOptions& options = {});

// What ranks compute on: the CPU, CUDA, or the test device (PrivateUse1). For any thread.
c10::DeviceType device_type();
bool is_on_device();  // not on the CPU
// Whether products and the like have the bits that the CPU computes; not on a GPU.
bool has_hosts_bits();

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SUPPORT_RANKS_GROUND_H_
