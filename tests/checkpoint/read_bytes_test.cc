// A rank reads from the disk hardly more than the bytes that it needs: counted in the page cache,
// from which the files have been dropped before.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "pipewright/checkpoint/read_plan.h"
#include "pipewright/checkpoint/save.h"
#include "pipewright/layout/boxes.h"
#include "tests/checkpoint/scratch.h"

namespace pipewright::checkpoint {
namespace {

namespace fs = std::filesystem;

const std::vector<int64_t> kShape = {16, 16, 65536};  // 64 MiB

class PageCache {
 public:
  explicit PageCache(const fs::path& path)
      : file_(::open(path.c_str(), O_RDONLY)), size_(fs::file_size(path)) {
    ::posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED);
  }
  ~PageCache() { ::close(file_); }
  PageCache(const PageCache&) = delete;
  PageCache& operator=(const PageCache&) = delete;

  // Of this file.
  uint64_t bytes() const {
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file_, 0);
    std::vector<unsigned char> is_resident((size_ + page - 1) / page);
    EXPECT_EQ(::mincore(mapped, size_, is_resident.data()), 0);
    ::munmap(mapped, size_);
    uint64_t bytes = 0;
    for (const unsigned char flags : is_resident) bytes += flags & 1 ? page : 0;
    return bytes;
  }

 private:
  const int file_;
  const size_t size_;
};

StoredCheckpoint open(const fs::path& path) {
  CheckpointReport report;
  return *StoredCheckpoint::open(path, &report);
}

class ReadBytes : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::vector<float> values(16 * 16 * 65536, 1);
    Snapshot snapshot;
    snapshot.step = 1;
    snapshot.parts = {
        {"w", DType::kF32, kShape, {{0, 0, 0}, kShape}, std::as_bytes(std::span(values)), ""}};
    path_ = Saver({.folder = tests::scratch_folder("read_bytes")}, [](const std::string& mine) {
              return std::vector{mine};
            }).save(snapshot);
  }

  static fs::path file() {
    for (const auto& entry : fs::directory_iterator(path_)) {
      if (entry.path().extension() == ".safetensors") return entry.path();
    }
    return {};
  }

  // Read from the disk to fill `box`, divided by its size.
  static double excess(const Box& box) {
    const PageCache cache(file());
    EXPECT_EQ(cache.bytes(), 0u) << "the file system of the test's folder must be on a disk";
    const StoredCheckpoint checkpoint = open(path_);
    const WantedBox wanted{"w", box};
    std::vector<float> values(static_cast<size_t>(volume(box)));
    const std::span<std::byte> buffer = std::as_writable_bytes(std::span(values));
    read(plan_reads(checkpoint.tensors(), {&wanted, 1}), checkpoint, {&buffer, 1});
    EXPECT_EQ(values, std::vector<float>(values.size(), 1));
    return static_cast<double>(cache.bytes()) / static_cast<double>(buffer.size());
  }

  inline static fs::path path_;
};

TEST_F(ReadBytes, TheHeadersAreAllThatOpeningReads) {
  const PageCache cache(file());
  open(path_);
  EXPECT_LE(cache.bytes(), 256u << 10);
}

TEST_F(ReadBytes, OneRun) { EXPECT_LE(excess({{4, 0, 0}, {4, 16, 65536}}), 1.1); }

TEST_F(ReadBytes, ManyRuns) {
  EXPECT_LE(excess({{0, 2, 0}, {16, 2, 65536}}), 1.1);       // of 512 KiB
  EXPECT_LE(excess({{0, 0, 16384}, {16, 16, 16384}}), 1.1);  // of 64 KiB
  EXPECT_LE(excess({{0, 5, 16384}, {16, 5, 16384}}), 1.1);
}

// Runs with less than a page between them.
TEST_F(ReadBytes, DenseRuns) { EXPECT_LE(excess({{3, 0, 0}, {5, 16, 65000}}), 1.1); }

TEST_F(ReadBytes, Verifying) {
  const PageCache cache(file());
  CheckpointReport report;
  open(path_).verify(&report, nullptr);
  EXPECT_TRUE(report.ok());
  EXPECT_GE(cache.bytes(), 64u << 20);
}

}  // namespace
}  // namespace pipewright::checkpoint
