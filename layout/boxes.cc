#include "pipewright/layout/boxes.h"

#include <algorithm>

namespace pipewright::layout {
namespace {

// The end of a box in a dimension; of a box that no tensor has, as near as a number comes to it.
int64_t end_of(const Box& box, size_t dim) {
  int64_t end = 0;
  return __builtin_add_overflow(box.begin[dim], box.sizes[dim], &end) ? INT64_MAX : end;
}

}  // namespace

Box whole_box(std::span<const int64_t> shape) {
  return {std::vector<int64_t>(shape.size(), 0), {shape.begin(), shape.end()}};
}

bool lies_in(const Box& box, std::span<const int64_t> shape) {
  if (box.begin.size() != shape.size() || box.sizes.size() != shape.size()) return false;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (box.begin[dim] < 0 || box.sizes[dim] < 0 || box.begin[dim] > shape[dim] - box.sizes[dim])
      return false;
  }
  return true;
}

int64_t volume(const Box& box) {
  int64_t product = 1;
  for (const int64_t size : box.sizes) product *= size;
  return product;
}

std::string text(const Box& box) {
  std::string ranges;
  for (size_t dim = 0; dim < box.begin.size(); ++dim) {
    if (dim > 0) ranges += ", ";
    ranges += std::to_string(box.begin[dim]) + ":" + std::to_string(end_of(box, dim));
  }
  return "[" + ranges + "]";
}

std::optional<Box> intersection(const Box& left, const Box& right) {
  Box both = left;
  for (size_t dim = 0; dim < left.begin.size(); ++dim) {
    const int64_t begin = std::max(left.begin[dim], right.begin[dim]);
    const int64_t end =
        std::min(left.begin[dim] + left.sizes[dim], right.begin[dim] + right.sizes[dim]);
    if (end <= begin) return std::nullopt;
    both.begin[dim] = begin;
    both.sizes[dim] = end - begin;
  }
  return both;
}

std::vector<Box> difference(const Box& box, const Box& cut) {
  const std::optional<Box> both = intersection(box, cut);
  if (!both) return {box};
  std::vector<Box> rest;
  // Cuts off what lies before and after the intersection, one dimension after the other.
  Box inner = box;
  for (size_t dim = 0; dim < box.begin.size(); ++dim) {
    const int64_t end = inner.begin[dim] + inner.sizes[dim];
    const int64_t cut_end = both->begin[dim] + both->sizes[dim];
    Box piece = inner;
    piece.sizes[dim] = both->begin[dim] - inner.begin[dim];
    if (piece.sizes[dim] > 0) rest.push_back(piece);
    piece.begin[dim] = cut_end;
    piece.sizes[dim] = end - cut_end;
    if (piece.sizes[dim] > 0) rest.push_back(piece);
    inner.begin[dim] = both->begin[dim];
    inner.sizes[dim] = both->sizes[dim];
  }
  return rest;
}

Coverage cover(std::span<const int64_t> shape, std::span<const Box> boxes) {
  Coverage coverage;
  if (volume(whole_box(shape)) > 0) coverage.gaps = {whole_box(shape)};
  for (size_t index = 0; index < boxes.size(); ++index) {
    std::vector<Box> rest;
    int64_t taken = 0;
    for (const Box& gap : coverage.gaps) {
      const std::optional<Box> both = intersection(gap, boxes[index]);
      if (!both) {
        rest.push_back(gap);
        continue;
      }
      taken += volume(*both);
      const std::vector<Box> pieces = difference(gap, *both);
      rest.insert(rest.end(), pieces.begin(), pieces.end());
    }
    coverage.gaps = std::move(rest);
    if (taken == volume(boxes[index])) continue;
    const auto other = std::find_if(boxes.begin(), boxes.end(), [&](const Box& box) {
      return intersection(box, boxes[index]).has_value();
    });
    coverage.overlaps.emplace_back(index, other - boxes.begin());
  }
  return coverage;
}

}  // namespace pipewright::layout
