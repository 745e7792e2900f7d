#include "pipewright/schedules/v_min.h"

#include "pipewright/schedules/building_block.h"
#include "pipewright/schedules/constraints.h"

namespace pipewright::schedules {
namespace {

ir::Rows make_rows(const Shape& shape) {
  return repeat_block(shape, v_min_block(shape.ranks), true);
}

constexpr Constraint kConstraints[] = {kTwoStagesARank};
constexpr std::string_view kAliases[] = {"VMin"};

}  // namespace

std::vector<BlockSlots> v_min_block(int ranks) {
  const int p = ranks;
  // The paper's table 8. If P is a multiple of 3, the backward would share a slot modulo 6 with
  // another action, so it starts two slots later.
  const int delay = p % 3 == 0 ? 2 : 0;
  std::vector<BlockSlots> block;
  for (int r = 0; r < p; ++r)
    block.push_back({r, 2 * p - 1 - r, 2 * p + delay + r, 4 * p + delay - 1 - r});
  return block;
}

const ScheduleSpec kVMin = {
    .name = "V-Min",
    .aliases = kAliases,
    .source = "arXiv 2405.15362",
    .pattern = Pattern::kV,
    .default_stages_per_rank = 2,
    .splits_backward = true,
    .bubble = "(4P-5) F",
    .bubble_where = "F = I = W, P >= 4 and M >= P",
    .bubble_note = kFittedBubble,
    .memory = "at most 2((P+4) div 3)",
    .constraints = kConstraints,
    .make_rows = make_rows,
};

}  // namespace pipewright::schedules
