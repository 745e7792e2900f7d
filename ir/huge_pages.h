#ifndef PIPEWRIGHT_IR_HUGE_PAGES_H_
#define PIPEWRIGHT_IR_HUGE_PAGES_H_

#include <cstddef>
#include <vector>

namespace pipewright::ir {

// Asks the kernel to back memory that has not been written yet by huge pages (madvise(2),
// MADV_HUGEPAGE). An array of gigabytes otherwise costs more time in page faults than in use. Does
// nothing for small arrays, or where the kernel has no huge pages.
void prefer_huge_pages(void* memory, size_t bytes);

// The same for the elements that a vector has reserved.
template <typename Element>
void prefer_huge_pages(std::vector<Element>* reserved) {
  prefer_huge_pages(reserved->data(), reserved->capacity() * sizeof(Element));
}

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_HUGE_PAGES_H_
