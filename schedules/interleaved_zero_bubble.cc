#include "pipewright/schedules/interleaved_zero_bubble.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "pipewright/ir/tables.h"
#include "pipewright/schedules/constraints.h"
#include "pipewright/schedules/interleaved.h"

namespace pipewright::schedules {
namespace {

ir::Row make_row(const Shape& shape, int rank) {
  const InterleavedOrder order(shape, rank);
  const int warmup = order.warmup(1);
  ir::Row row(static_cast<size_t>(rank));
  auto forwards = order.walk(), backwards = order.walk(), weights = order.walk();
  int forward = 0;
  for (; forward < warmup; ++forward) row.emplace_back(forwards.next(ir::ActionKind::kForward));
  if (warmup > 0) row.resize(row.size() + static_cast<size_t>(shape.ranks - 1 - rank));
  int weight = 0;
  const auto add_weight = [&] {
    row.emplace_back(weights.next(ir::ActionKind::kBackwardWeight));
    ++weight;
  };
  for (int backward = 0; backward < order.num_operations(); ++backward) {
    if (forward < order.num_operations()) {
      row.emplace_back(forwards.next(ir::ActionKind::kForward));
      ++forward;
    }
    row.emplace_back(backwards.next(ir::ActionKind::kBackwardInput));
    if (backward >= rank) add_weight();
  }
  while (weight < order.num_operations()) add_weight();
  return row;
}

// Steps all ranks in lockstep. A forward whose input was not computed in an earlier step is
// preceded by one idle slot and tried again in the next step.
void align(ir::ComputeOrder* order) {
  const size_t num_ranks = order->rows.size();
  // Whether each forward has run in an earlier step.
  ir::StageMicrobatchTable<bool> seen(order->placement, order->num_microbatches);
  ir::Rows aligned(num_ranks);
  std::vector<size_t> next(num_ranks);
  std::vector<ir::ActionPart> this_step;
  for (bool busy = true; busy;) {
    busy = false;
    this_step.clear();
    for (size_t rank = 0; rank < num_ranks; ++rank) {
      const ir::Row& row = order->rows[rank];
      if (next[rank] == row.size()) continue;
      busy = true;
      const ir::Action action = row[next[rank]];
      if (action.kind() == ir::ActionKind::kForward) {
        const ir::ActionPart part = action.parts()[0];
        if (part.stage() > 0 && !seen.at(part.stage() - 1, part.microbatch())) {
          aligned[rank].emplace_back();
          continue;
        }
        this_step.push_back(part);
      }
      aligned[rank].push_back(action);
      ++next[rank];
    }
    for (const ir::ActionPart part : this_step) seen.at(part.stage(), part.microbatch()) = true;
  }
  order->rows = std::move(aligned);
}

constexpr Constraint kConstraints[] = {kSameNumberOfStages, kWholeRounds};
constexpr std::string_view kAliases[] = {"ZB1P", "ScheduleInterleavedZeroBubble"};

}  // namespace

const ScheduleSpec kInterleavedZeroBubble = {
    .name = "InterleavedZeroBubble",
    .aliases = kAliases,
    .source = "arXiv 2401.10241",
    .pattern = Pattern::kLoop,
    .default_stages_per_rank = 2,
    .splits_backward = true,
    .bubble = "(P-1)(F+I-W)",
    .bubble_where = "M >= P, W <= F and W <= I",
    .memory = "min(V M, (V-1)R + P), R = M div max(1, M div P)",
    .constraints = kConstraints,
    .make_row = make_row,
    .align = align,
};

}  // namespace pipewright::schedules
