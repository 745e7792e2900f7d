#include "pipewright/schedules/warm_up_and_steady.h"

#include <algorithm>

namespace pipewright::schedules {
namespace {

using ir::ActionKind;

// Appends the forwards; calls `add_backward(b)` where the backward of microbatch b belongs.
template <typename AddBackward>
void add_all(const Shape& shape, int rank, int warm_up, ir::Row* row, AddBackward add_backward) {
  int forward = 0;
  while (forward < std::min(shape.microbatches, warm_up))
    row->emplace_back(ActionKind::kForward, rank, forward++);
  for (int backward = 0; backward < shape.microbatches; ++backward) {
    if (forward < shape.microbatches) row->emplace_back(ActionKind::kForward, rank, forward++);
    add_backward(backward);
  }
}

}  // namespace

ir::Row warm_up_and_steady(const Shape& shape, int rank, int warm_up) {
  ir::Row row;
  row.reserve(2 * static_cast<size_t>(shape.microbatches));
  add_all(shape, rank, warm_up, &row,
          [&](int backward) { row.emplace_back(ActionKind::kBackward, rank, backward); });
  return row;
}

ir::Row warm_up_and_steady_split(const Shape& shape, int rank, int warm_up, int first_weight) {
  ir::Row row;
  row.reserve(3 * static_cast<size_t>(shape.microbatches));
  int weight = 0;
  add_all(shape, rank, warm_up, &row, [&](int backward) {
    row.emplace_back(ActionKind::kBackwardInput, rank, backward);
    if (backward >= first_weight) row.emplace_back(ActionKind::kBackwardWeight, rank, weight++);
  });
  while (weight < shape.microbatches) row.emplace_back(ActionKind::kBackwardWeight, rank, weight++);
  return row;
}

}  // namespace pipewright::schedules
