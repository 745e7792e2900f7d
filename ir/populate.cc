#include "pipewright/ir/populate.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace pipewright::ir {

void populate_memory(const void* begin, const void* end) {
#ifdef MADV_POPULATE_WRITE
  constexpr uintptr_t kWorthACall = 32 * 1024;  // bytes
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  const uintptr_t last = reinterpret_cast<uintptr_t>(end) / page * page;
  if (first + kWorthACall > last) return;
  // Freed memory that malloc has kept is there already, and to go through its pages takes time too.
  unsigned char is_there = 0;
  if (mincore(reinterpret_cast<void*>(last - page), page, &is_there) == 0 && (is_there & 1) == 0)
    madvise(reinterpret_cast<void*>(first), last - first, MADV_POPULATE_WRITE);
#endif
}

}  // namespace pipewright::ir
