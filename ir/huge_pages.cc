#include "pipewright/ir/huge_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace pipewright::ir {

void prefer_huge_pages(void* memory, size_t bytes) {
  constexpr size_t kWorthwhile = size_t{16} << 20;
  if (bytes < kWorthwhile) return;
  // Whole pages only: the first and the last one may belong to other memory too.
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + bytes) / page * page;
  // A hint: failure changes nothing but speed.
  (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace pipewright::ir
