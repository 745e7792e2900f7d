#ifndef PIPEWRIGHT_LAYOUT_BOXES_H_
#define PIPEWRIGHT_LAYOUT_BOXES_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/layout/layout.h"

// Arithmetic of boxes (layout.h). Boxes that meet have the same number of dimensions. Pure
// functions; any thread.

namespace pipewright::layout {

// The whole tensor.
Box whole_box(std::span<const int64_t> shape);
// Whether the box is one of a tensor of that shape.
bool lies_in(const Box& box, std::span<const int64_t> shape);
// The number of elements. It must fit 64 bits, as that of every tensor in memory does.
int64_t volume(const Box& box);
// "[0:3, 4:8]", or "[]" for a scalar.
std::string text(const Box& box);

// The elements that both have; nullopt if there are none.
std::optional<Box> intersection(const Box& left, const Box& right);
// The elements of `box` without those of `cut`, as at most two boxes per dimension.
std::vector<Box> difference(const Box& box, const Box& cut);

// How boxes cover a tensor: which elements no box has, and which boxes have an element of an
// earlier one. `boxes` must lie in the tensor. Linear in their number if they come in row-major
// order and tile the tensor.
struct Coverage {
  std::vector<Box> gaps;
  std::vector<std::pair<size_t, size_t>> overlaps;  // the later box, and the first it overlaps

  bool is_exact() const { return gaps.empty() && overlaps.empty(); }
};
Coverage cover(std::span<const int64_t> shape, std::span<const Box> boxes);

}  // namespace pipewright::layout

#endif  // PIPEWRIGHT_LAYOUT_BOXES_H_
