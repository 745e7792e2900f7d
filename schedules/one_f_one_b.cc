#include "pipewright/schedules/one_f_one_b.h"

#include "pipewright/schedules/constraints.h"
#include "pipewright/schedules/warm_up_and_steady.h"

namespace pipewright::schedules {
namespace {

ir::Row make_row(const Shape& shape, int rank) {
  return warm_up_and_steady(shape, rank, shape.ranks - 1 - rank);
}

constexpr Constraint kConstraints[] = {kOneStageARank};
constexpr std::string_view kAliases[] = {"PipeDream-Flush", "DAPPLE", "Schedule1F1B"};

}  // namespace

const ScheduleSpec kOneFOneB = {
    .name = "1F1B",
    .aliases = kAliases,
    .source = "arXiv 2006.09503",
    .pattern = Pattern::kLoop,
    .default_stages_per_rank = 1,
    .splits_backward = false,
    .bubble = "(P-1)(F+B)",
    .memory = "min(M, P-r)",
    .constraints = kConstraints,
    .make_row = make_row,
};

}  // namespace pipewright::schedules
