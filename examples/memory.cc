#include "examples/memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

namespace pipewright::examples {
namespace {

namespace fs = std::filesystem;

// The files of a control group's memory: man 7 cgroups, and cgroup-v1/memory.rst and cgroup-v2.rst
// in the documentation of the kernel.
struct CgroupFiles {
  const char* controller;   // in /proc/self/cgroup; version 2 has one hierarchy, without a name
  const char* folder;       // in /sys/fs/cgroup
  const char* limit;        // a number; "max" for none in version 2
  const char* usage;        // with the page cache
  const char* reclaimable;  // in memory.stat: page cache that is freed when memory is short
};
constexpr CgroupFiles kVersions[] = {
    {"memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
    {"", "", "memory.max", "memory.current", "inactive_file"},
};

// The number of a file; nullopt if there is no such file, or a word in it.
std::optional<int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

// The value of a key in a file of lines "key value"; 0 if there is none.
int64_t value_in(const fs::path& path, const std::string& wanted) {
  std::ifstream file(path);
  std::string key;
  for (int64_t value = 0; file >> key >> value;) {
    if (key == wanted) return value;
  }
  return 0;
}

// The group of this process in a hierarchy, such as "/slurm/job_7", from a line
// "4:cpu,memory:/slurm/job_7".
std::optional<std::string> group_of_process(const fs::path& root, const std::string& controller) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::istringstream controllers(line.substr(first + 1, second - first - 1));
    std::string one;
    do {
      one.clear();
      std::getline(controllers, one, ',');
      if (one == controller) return line.substr(second + 1);
    } while (!controllers.eof());
  }
  return std::nullopt;
}

// Lowers `memory` to the limits of a group and of all groups around it. In a container, the names
// may be those of the host, of which only the innermost ones exist here: its own is the root.
void lower_to_limits(const fs::path& root, const CgroupFiles& files, HostMemory* memory) {
  const std::optional<std::string> group = group_of_process(root, files.controller);
  if (!group) return;
  const fs::path top = root / "sys/fs/cgroup" / files.folder;
  for (fs::path name = fs::path(*group).relative_path();; name = name.parent_path()) {
    const fs::path folder = top / name;
    if (const auto limit = number_in(folder / files.limit)) {
      const int64_t used = number_in(folder / files.usage).value_or(0) -
                           value_in(folder / "memory.stat", files.reclaimable);
      memory->total = std::min(memory->total, *limit);
      memory->available = std::min(memory->available, std::max<int64_t>(0, *limit - used));
    }
    if (name.empty()) return;
  }
}

}  // namespace

int64_t peak_process_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * int64_t{1024};
}

HostMemory host_memory(const fs::path& root) {
  std::ifstream file(root / "proc/meminfo");
  HostMemory memory;
  std::string key, unit;
  for (int64_t kib = 0; file >> key >> kib; std::getline(file, unit)) {
    if (key == "MemTotal:") memory.total = 1024 * kib;
    if (key == "MemAvailable:") memory.available = 1024 * kib;
  }
  if (memory.available == 0) throw std::runtime_error("/proc/meminfo has no MemAvailable");
  for (const CgroupFiles& files : kVersions) lower_to_limits(root, files, &memory);
  return memory;
}

}  // namespace pipewright::examples
