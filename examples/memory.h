#ifndef PIPEWRIGHT_EXAMPLES_MEMORY_H_
#define PIPEWRIGHT_EXAMPLES_MEMORY_H_

#include <cstdint>
#include <filesystem>

// Memory of this process and of its host. Torch-free.

namespace pipewright::examples {

// The most bytes of memory that this process has had.
int64_t peak_process_bytes();

// Memory that this process may use, in bytes: that of the host, or of the tightest control group
// (a container, a job of Slurm or a unit of systemd) that the process is in.
struct HostMemory {
  int64_t total = 0;
  int64_t available = 0;  // what programs can still get without swapping or being killed
};
// Reads /proc/meminfo, and the limits of control groups of version 1 and 2 under /sys/fs/cgroup.
// `root` replaces "/", for tests. Throws std::runtime_error if /proc/meminfo does not say.
HostMemory host_memory(const std::filesystem::path& root = "/");

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_MEMORY_H_
