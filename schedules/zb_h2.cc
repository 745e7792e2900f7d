#include "pipewright/schedules/zb_h2.h"

#include "pipewright/schedules/constraints.h"
#include "pipewright/schedules/warm_up_and_steady.h"

namespace pipewright::schedules {
namespace {

ir::Row make_row(const Shape& shape, int rank) {
  return warm_up_and_steady_split(shape, rank, 2 * (shape.ranks - 1 - rank), 2 * rank);
}

constexpr Constraint kConstraints[] = {kOneStageARank};
constexpr std::string_view kAliases[] = {"ZBH2"};

}  // namespace

const ScheduleSpec kZbH2 = {
    .name = "ZB-H2",
    .aliases = kAliases,
    .source = "arXiv 2401.10241",
    .pattern = Pattern::kLoop,
    .default_stages_per_rank = 1,
    .splits_backward = true,
    .bubble = "(P-1)(F+I-2W)",
    .bubble_where = "M >= 2P-1, W <= F and W <= I",
    .memory = "min(M, 2P-1)",
    .constraints = kConstraints,
    .make_row = make_row,
};

}  // namespace pipewright::schedules
