#include "schedules/one_f_one_b.h"

#include <algorithm>

#include "schedules/constraints.h"

namespace pipewright::schedules {
namespace {

ir::Row make_row(const Shape& shape, int rank) {
  const int num_microbatches = shape.microbatches;
  ir::Row row;
  row.reserve(2 * static_cast<size_t>(num_microbatches));
  int forward = 0;
  while (forward < std::min(num_microbatches, shape.ranks - 1 - rank)) {
    row.emplace_back(ir::ActionKind::kForward, rank, forward++);
  }
  for (int backward = 0; backward < num_microbatches; ++backward) {
    if (forward < num_microbatches) row.emplace_back(ir::ActionKind::kForward, rank, forward++);
    row.emplace_back(ir::ActionKind::kBackward, rank, backward);
  }
  return row;
}

constexpr Constraint kConstraints[] = {kOneStageARank};
constexpr std::string_view kAliases[] = {"PipeDream-Flush", "DAPPLE"};

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
    .align = nullptr,
};

}  // namespace pipewright::schedules
