// Reading a CSV allocates 16 bytes per cell in addition to the text. Counts every allocation of the
// process, so this test has a program to itself.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "pipewright/ir/text/csv.h"

namespace {
std::atomic<size_t> live{0}, peak{0};

void count(void* block) {
  const size_t now = live += malloc_usable_size(block);
  size_t before = peak;
  while (before < now && !peak.compare_exchange_weak(before, now)) {
  }
}
}  // namespace

void* operator new(size_t size) {
  void* block = std::malloc(size);
  if (block == nullptr) throw std::bad_alloc();
  count(block);
  return block;
}
void operator delete(void* block) noexcept {
  live -= malloc_usable_size(block);
  std::free(block);
}
void operator delete(void* block, size_t) noexcept { operator delete(block); }

namespace pipewright::ir {
namespace {

TEST(CsvMemoryTest, SixteenBytesPerCell) {
  constexpr size_t kRanks = 8,
                   kCells =
                       1000003;  // just above a power of two: the worst case for a growing vector
  Source source{"big.csv", ""};
  for (size_t rank = 0; rank < kRanks; ++rank) {
    for (size_t cell = 0; cell < kCells / kRanks; ++cell) {
      if (cell > 0) source.text += ',';
      if (cell % 16 != 0) source.text += std::to_string(rank) + "F" + std::to_string(cell);
    }
    source.text += '\n';
  }
  Diagnostics diagnostics;
  const size_t before = live;
  peak = before;
  const auto parsed = parse_csv(source, &diagnostics);
  ASSERT_TRUE(parsed);
  constexpr size_t kSlack = 64 << 10;  // for rows, placement and places
  EXPECT_LE(peak - before, 16 * (kCells / kRanks) * kRanks + kSlack);
  EXPECT_GE(peak - before, 16 * (kCells / kRanks) * kRanks)
      << "the allocations of the rows are not counted";
}

}  // namespace
}  // namespace pipewright::ir
