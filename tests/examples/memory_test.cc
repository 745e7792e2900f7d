// The memory that a process may use, in folders that look like those of hosts and containers.
#include "examples/memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>
#include <string>

#include "tests/checkpoint/scratch.h"

namespace pipewright::examples {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMib = 1 << 20;

// A host with 1000 MiB, of which 600 are available, and with these groups of the process.
class Host {
 public:
  explicit Host(const std::string& groups) {
    write("proc/meminfo",
          "MemTotal:        1024000 kB\nMemFree:          20480 kB\n"
          "MemAvailable:     614400 kB\nSwapTotal: 0 kB\n");
    write("proc/self/cgroup", groups);
  }
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    tests::write_file(root_ / path, text);
  }
  void write(const std::string& path, int64_t mib) const {
    write(path, std::to_string(mib * kMib) + "\n");
  }
  void expect(int64_t total_mib, int64_t available_mib) const {
    const HostMemory memory = host_memory(root_);
    EXPECT_EQ(memory.total, total_mib * kMib);
    EXPECT_EQ(memory.available, available_mib * kMib);
  }

 private:
  const fs::path root_ = tests::scratch_folder("host");
};

TEST(Memory, OfAHostWithoutLimits) {
  Host("").expect(1000, 600);
  Host("0::/\n").expect(1000, 600);
  const Host two("0::/user.slice\n");
  two.write("sys/fs/cgroup/user.slice/memory.max", "max\n");
  two.write("sys/fs/cgroup/user.slice/memory.current", 900);
  two.expect(1000, 600);
  const Host one("4:memory:/\n0::/\n");
  one.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  one.write("sys/fs/cgroup/memory/memory.usage_in_bytes", 900);
  one.expect(1000, 600);
}

TEST(Memory, OfAGroupOfVersion2) {
  const Host host("0::/job/task\n");
  const std::string job = "sys/fs/cgroup/job/", task = job + "task/";
  host.write(task + "memory.max", 500);
  host.write(task + "memory.current", 300);
  host.expect(500, 200);
  // Page cache counts as used, and is free when memory is short.
  host.write(task + "memory.stat", "anon 1\ninactive_anon 9999\ninactive_file " +
                                       std::to_string(100 * kMib) + "\nactive_file 9999\n");
  host.expect(500, 300);
  // The group around it has less, which other processes have used up.
  host.write(job + "memory.max", 450);
  host.write(job + "memory.current", 440);
  host.expect(450, 10);
  host.write(job + "memory.current", 460);
  host.expect(450, 0);
}

// The root is the group of a container, where it is mounted so.
TEST(Memory, OfAContainer) {
  const Host two("0::/\n");
  two.write("sys/fs/cgroup/memory.max", 500);
  two.write("sys/fs/cgroup/memory.current", 100);
  two.expect(500, 400);
  const Host one("9:cpuset:/docker/4f\n4:hugetlb,memory:/docker/4f\n0::/\n");
  one.write("sys/fs/cgroup/memory/memory.limit_in_bytes", 300);
  one.write("sys/fs/cgroup/memory/memory.usage_in_bytes", 200);
  one.write("sys/fs/cgroup/memory/memory.stat",
            "inactive_file 5\ntotal_inactive_file " + std::to_string(50 * kMib) + "\n");
  one.expect(300, 150);
}

TEST(Memory, OfAGroupOfVersion1) {
  const Host host("4:memory:/slurm/job_7\n3:cpu:/\n");
  const std::string job = "sys/fs/cgroup/memory/slurm/job_7/";
  host.write(job + "memory.limit_in_bytes", 700);
  host.write(job + "memory.usage_in_bytes", 50);
  host.expect(700, 600);  // the host has no more
  host.write("sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", 650);
  host.write("sys/fs/cgroup/memory/slurm/memory.usage_in_bytes", 640);
  host.expect(650, 10);
}

TEST(Memory, OfThisHost) {
  const HostMemory memory = host_memory();
  EXPECT_GT(memory.available, 0);
  EXPECT_LE(memory.available, memory.total);
  EXPECT_GT(peak_process_bytes(), 1'000'000);
  EXPECT_THROW(host_memory("/nowhere"), std::runtime_error);
}

}  // namespace
}  // namespace pipewright::examples
