#include "pipewright/schedules/chimera.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "pipewright/schedules/constraints.h"

namespace pipewright::schedules {
namespace {

ir::Row make_row(const Shape& shape, int rank) {
  const int half = shape.microbatches / 2, in_unit = shape.ranks / 2;
  std::vector<std::pair<int64_t, ir::Action>> slots;
  for (const bool is_second : {false, true}) {
    const int stage = is_second ? shape.ranks - 1 - rank : rank;
    for (int j = 0; j < half; ++j) {
      const int microbatch = is_second ? half + j : j;
      const int64_t start = int64_t{2} * shape.ranks * (j / in_unit) + 2 * (j % in_unit);
      slots.emplace_back(start + stage, ir::Action(ir::ActionKind::kForward, stage, microbatch));
      slots.emplace_back(start + 2 * shape.ranks - 1 - stage,
                         ir::Action(ir::ActionKind::kBackward, stage, microbatch));
    }
  }
  std::ranges::sort(slots);
  ir::Row row;
  row.reserve(slots.size());
  for (const auto& [slot, action] : slots) row.push_back(action);
  return row;
}

constexpr Constraint kConstraints[] = {kOneStageARank, kEvenRanks, kEvenMicrobatches};

}  // namespace

const ScheduleSpec kChimera = {
    .name = "Chimera",
    .aliases = {},
    .source = "arXiv 2107.06925",
    .pattern = Pattern::kBothWays,
    .default_stages_per_rank = 1,
    .splits_backward = false,
    .bubble = "(P/2-1)(F+B)",
    .bubble_where = "F = B and P divides M",
    .memory = "min(M, P)/2 + min(M/2, r+1, P-r)",
    .constraints = kConstraints,
    .make_row = make_row,
};

}  // namespace pipewright::schedules
