#ifndef PIPEWRIGHT_IR_POPULATE_H_
#define PIPEWRIGHT_IR_POPULATE_H_

#include <cstddef>
#include <vector>

#include "pipewright/ir/check.h"

namespace pipewright::ir {

// The same as populate() for any memory of the caller's. Does not change what is there.
void populate_memory(const void* begin, const void* end);

// Has the kernel provide the memory of elements up to `size`, which is at most the capacity, before
// they are written. Otherwise the first write to each page of new memory stops for the kernel; all
// at once, pages take a third less time (Linux 5.14's MADV_POPULATE_WRITE). Only a hint: it has no
// effect elsewhere, or on few elements.
template <typename Value>
void populate(std::vector<Value>* values, size_t size) {
  PW_CHECK(size <= values->capacity(), "only memory that a vector has can be populated");
  if (size > values->size())
    populate_memory(values->data() + values->size(), values->data() + size);
}

// `size` copies of `value`, in memory that is populated first.
template <typename Value>
std::vector<Value> populated(size_t size, const Value& value) {
  std::vector<Value> values;
  values.reserve(size);
  populate(&values, size);
  values.assign(size, value);
  return values;
}

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_POPULATE_H_
