#include "pipewright/schedules/zb_h1.h"

#include "pipewright/schedules/constraints.h"
#include "pipewright/schedules/warm_up_and_steady.h"

namespace pipewright::schedules {
namespace {

ir::Row make_row(const Shape& shape, int rank) {
  return warm_up_and_steady_split(shape, rank, shape.ranks - 1 - rank, rank);
}

constexpr Constraint kConstraints[] = {kOneStageARank};
constexpr std::string_view kAliases[] = {"ZBH1"};

}  // namespace

const ScheduleSpec kZbH1 = {
    .name = "ZB-H1",
    .aliases = kAliases,
    .source = "arXiv 2401.10241",
    .pattern = Pattern::kLoop,
    .default_stages_per_rank = 1,
    .splits_backward = true,
    .bubble = "(P-1)(F+I-W)",
    .bubble_where = "M >= P, W <= F and W <= I",
    .memory = "min(M, P)",
    .constraints = kConstraints,
    .make_row = make_row,
};

}  // namespace pipewright::schedules
