#ifndef PIPEWRIGHT_EXAMPLES_MEMORY_H_
#define PIPEWRIGHT_EXAMPLES_MEMORY_H_

#include <cstdint>

// Memory of this process and of its host. Torch-free.

namespace pipewright::examples {

// The most bytes of memory that this process has had.
int64_t peak_process_bytes();
// All memory of this host, and what programs can still get without swapping.
struct HostMemory {
  int64_t total = 0, available = 0;
};
// Throws std::runtime_error if /proc/meminfo does not say.
HostMemory host_memory();

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_MEMORY_H_
