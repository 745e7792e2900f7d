#include "pipewright/schedules/warm_up_and_steady.h"

#include <algorithm>

#include "pipewright/ir/dependencies.h"

namespace pipewright::schedules {
namespace {

using ir::ActionKind;

// Writes the row to `next`: the forwards, and whatever `write_backward(b, next)` writes where the
// backward of microbatch b belongs. Returns the end of what was written. Rows have a known length,
// so they are filled in place: twice as fast as appending.
template <typename WriteBackward>
ir::Action* write_row(const Shape& shape, int rank, int warm_up, ir::Action* next,
                      WriteBackward write_backward) {
  int forward = 0;
  while (forward < std::min(shape.microbatches, warm_up))
    *next++ = {ActionKind::kForward, rank, forward++};
  for (int backward = 0; backward < shape.microbatches; ++backward) {
    if (forward < shape.microbatches) *next++ = {ActionKind::kForward, rank, forward++};
    next = write_backward(backward, next);
  }
  return next;
}

}  // namespace

ir::Row warm_up_and_steady(const Shape& shape, int rank, int warm_up) {
  ir::Row row(2 * static_cast<size_t>(shape.microbatches));
  write_row(shape, rank, warm_up, row.data(), [&](int backward, ir::Action* next) {
    *next++ = {ActionKind::kBackward, rank, ir::backward_at(backward, shape.slices)};
    return next;
  });
  return row;
}

ir::Row warm_up_and_steady_split(const Shape& shape, int rank, int warm_up, int first_weight) {
  ir::Row row(3 * static_cast<size_t>(shape.microbatches));
  int weight = 0;
  ir::Action* end =
      write_row(shape, rank, warm_up, row.data(), [&](int backward, ir::Action* next) {
        *next++ = {ActionKind::kBackwardInput, rank, backward};
        if (backward >= first_weight) *next++ = {ActionKind::kBackwardWeight, rank, weight++};
        return next;
      });
  while (weight < shape.microbatches) *end++ = {ActionKind::kBackwardWeight, rank, weight++};
  return row;
}

}  // namespace pipewright::schedules
