#include "pipewright/schedules/v_half.h"

#include "pipewright/schedules/building_block.h"
#include "pipewright/schedules/constraints.h"

namespace pipewright::schedules {
namespace {

ir::Rows make_rows(const Shape& shape) {
  const int p = shape.ranks;
  // The paper's table 9. If P is even, the backward would share a slot modulo 6 with another
  // action, so it starts three slots later.
  const int delay = p % 2 == 0 ? 3 : 0;
  std::vector<BlockSlots> block;
  for (int r = 0; r < p; ++r)
    block.push_back({2 * r, 3 * p - 2 - r, 3 * p + delay + 2 * r - 1, 6 * p + delay - 2 - r});
  return repeat_block(shape, block, true);
}

constexpr Constraint kConstraints[] = {kTwoStagesARank};
constexpr std::string_view kAliases[] = {"VHalf"};

}  // namespace

const ScheduleSpec kVHalf = {
    .name = "V-Half",
    .aliases = kAliases,
    .source = "arXiv 2405.15362",
    .pattern = Pattern::kV,
    .default_stages_per_rank = 2,
    .splits_backward = true,
    .bubble = "(3P-4) F for odd P, (3P-7) F for even P",
    .bubble_where = "F = I = W, P >= 3 and M >= P",
    .bubble_note = kFittedBubble,
    .memory = "at most 2((P+2) div 2)",
    .constraints = kConstraints,
    .make_rows = make_rows,
};

}  // namespace pipewright::schedules
