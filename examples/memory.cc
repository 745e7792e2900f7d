#include "examples/memory.h"

#include <sys/resource.h>

#include <fstream>
#include <stdexcept>
#include <string>

namespace pipewright::examples {

int64_t peak_process_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * int64_t{1024};
}

HostMemory host_memory() {
  std::ifstream file("/proc/meminfo");
  HostMemory memory;
  std::string key, unit;
  for (int64_t kib = 0; file >> key >> kib; std::getline(file, unit)) {
    if (key == "MemTotal:") memory.total = 1024 * kib;
    if (key == "MemAvailable:") memory.available = 1024 * kib;
  }
  if (memory.available == 0) throw std::runtime_error("/proc/meminfo has no MemAvailable");
  return memory;
}

}  // namespace pipewright::examples
