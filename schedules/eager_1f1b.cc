#include "pipewright/schedules/eager_1f1b.h"

#include "pipewright/schedules/constraints.h"
#include "pipewright/schedules/warm_up_and_steady.h"

namespace pipewright::schedules {
namespace {

ir::Row make_row(const Shape& shape, int rank) {
  return warm_up_and_steady(shape, rank, 2 * (shape.ranks - 1 - rank));
}

constexpr Constraint kConstraints[] = {kOneStageARank};

}  // namespace

const ScheduleSpec kEager1F1B = {
    .name = "Eager1F1B",
    .aliases = {},
    .source = "arXiv 2211.05322",
    .pattern = Pattern::kLoop,
    .default_stages_per_rank = 1,
    .splits_backward = false,
    .bubble = "(P-1)(F+B)",
    .memory = "min(M, 2(P-r)-1)",
    .constraints = kConstraints,
    .make_row = make_row,
};

}  // namespace pipewright::schedules
