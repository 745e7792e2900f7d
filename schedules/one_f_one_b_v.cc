#include "pipewright/schedules/one_f_one_b_v.h"

#include "pipewright/schedules/building_block.h"
#include "pipewright/schedules/constraints.h"

namespace pipewright::schedules {
namespace {

ir::Rows make_rows(const Shape& shape) {
  const int p = shape.ranks;
  // The authors' v1f1b.py. The block must occupy all 6 slots modulo 6, which leaves little choice:
  // backwards follow each other directly, with a gap of three slots after every third one. P mod 3
  // decides which ones have the gap, and whether there is one before the first backward.
  const int first_gap = p % 3 == 1 ? 0 : 3;
  std::vector<BlockSlots> block(static_cast<size_t>(p));
  int slot = 0;
  for (int r = 0; r < p; ++r) block[static_cast<size_t>(r)].forward_down = slot++;
  for (int r = p; r-- > 0;) block[static_cast<size_t>(r)].forward_up = slot++;
  slot += first_gap;
  for (int r = 0; r < p; ++r) {
    block[static_cast<size_t>(r)].backward_down = slot;
    slot += r % 3 == p % 3 ? 5 : 2;
  }
  for (int r = p; r-- > 0;) {
    block[static_cast<size_t>(r)].backward_up = slot;
    slot += (p - 1 - r) % 3 == 0 ? 5 : 2;
  }
  return repeat_block(shape, block, false);
}

constexpr Constraint kConstraints[] = {kTwoStagesARank};
constexpr std::string_view kAliases[] = {"1F1BV"};

}  // namespace

const ScheduleSpec kOneFOneBV = {
    .name = "1F1B-V",
    .aliases = kAliases,
    .source = "arXiv 2405.15362",
    .pattern = Pattern::kV,
    .default_stages_per_rank = 2,
    .splits_backward = false,
    .bubble = "(5P-5) F - 2((P-1) mod 3) F",
    .bubble_where = "F = I = W, P >= 7 and M > P",
    .bubble_note = kFittedBubble,
    .memory = "at most 2((2P+3) div 3)",
    .constraints = kConstraints,
    .make_rows = make_rows,
};

}  // namespace pipewright::schedules
