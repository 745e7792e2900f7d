#include "pipewright/ir/populate.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "pipewright/ir/action.h"
#include "pipewright/ir/check.h"
#include "pipewright/ir/schedule.h"

namespace pipewright::ir {
namespace {

size_t page_size() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// How many of the whole pages of a row's capacity the kernel has provided, and of how many.
struct Pages {
  size_t provided, all;
};
Pages pages_of(const Row& row) {
  const size_t page = page_size();
  const auto begin = reinterpret_cast<uintptr_t>(row.data());
  const uintptr_t first = (begin + page - 1) / page * page;
  const uintptr_t last = (begin + row.capacity() * sizeof(Action)) / page * page;
  std::vector<unsigned char> provided((last - first) / page);
  EXPECT_EQ(mincore(reinterpret_cast<void*>(first), last - first, provided.data()), 0);
  const auto count = std::ranges::count_if(provided, [](unsigned char bits) { return bits & 1; });
  return {static_cast<size_t>(count), provided.size()};
}

bool kernel_populates() {
  const size_t page = page_size();
  void* memory = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool does = madvise(memory, page, MADV_POPULATE_WRITE) == 0;
  munmap(memory, page);
  return does;
}

TEST(Populate, ProvidesEveryPageOfNewMemory) {
  Row row;
  row.reserve(1 << 20);  // 16 MiB, which malloc has not had before
  EXPECT_LE(pages_of(row).provided, 1u);
  populate(&row, row.capacity());
  const Pages pages = pages_of(row);
  EXPECT_EQ(pages.provided == pages.all, kernel_populates())
      << pages.provided << " of " << pages.all;
}

TEST(Populate, KeepsWhatTheRowHas) {
  for (const size_t written : {size_t{0}, size_t{1}, size_t{5000}, size_t{100000}}) {
    Row row;
    row.reserve(written + 50000);
    for (size_t index = 0; index < written; ++index)
      row.emplace_back(ActionKind::kForward, 3, static_cast<int>(index));
    const Row before = row;
    for (const size_t size : {size_t{0}, written / 2, written, written + 50000})
      populate(&row, size);
    EXPECT_EQ(row, before) << written;
  }
}

TEST(Populate, FillsANewVector) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{100000}})
    EXPECT_EQ(populated(size, 2.5), std::vector<double>(size, 2.5));
}

// The values from before clear() show that resize() wrote nothing.
TEST(Populate, UnwrittenElementsAreWhatTheMemoryWas) {
  UnwrittenVector<double> values(1000, 2.5);
  values.clear();
  values.resize(1000);
  EXPECT_EQ(values, UnwrittenVector<double>(1000, 2.5));
  EXPECT_EQ(populated_unwritten<double>(100000).size(), 100000u);
}

TEST(Populate, RefusesMemoryOfOthers) {
  Row row;
  EXPECT_THROW(populate(&row, 1), InternalError);
}

}  // namespace
}  // namespace pipewright::ir
