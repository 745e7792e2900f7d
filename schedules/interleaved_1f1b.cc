#include "pipewright/schedules/interleaved_1f1b.h"

#include <algorithm>

#include "pipewright/schedules/constraints.h"
#include "pipewright/schedules/interleaved.h"

namespace pipewright::schedules {

ir::Row interleaved_1f1b_row(const Shape& shape, int rank, int extra_warmup, bool has_idle) {
  const InterleavedOrder order(shape, rank);
  const int warmup = std::min(order.warmup(2) + extra_warmup, order.num_operations());
  const int until_first_backward = shape.stages + 2 * (shape.ranks - 1 - rank);
  const int idle = has_idle && warmup > 0 ? std::max(0, until_first_backward - (warmup + rank)) : 0;
  ir::Row row;
  row.reserve(static_cast<size_t>(rank) + static_cast<size_t>(warmup) + static_cast<size_t>(idle) +
              2 * static_cast<size_t>(order.num_operations()));
  if (has_idle) row.resize(static_cast<size_t>(rank));
  auto forwards = order.walk(), backwards = order.walk();
  int forward = 0;
  for (; forward < warmup; ++forward) row.emplace_back(forwards.next(ir::ActionKind::kForward));
  row.resize(row.size() + static_cast<size_t>(idle));
  for (int backward = 0; backward < order.num_operations(); ++backward) {
    if (forward < order.num_operations()) {
      row.emplace_back(forwards.next(ir::ActionKind::kForward));
      ++forward;
    } else if (has_idle) {
      row.emplace_back();
    }
    row.emplace_back(backwards.next(ir::ActionKind::kBackward));
  }
  return row;
}

namespace {

ir::Row make_row(const Shape& shape, int rank) {
  // With options it is Megatron-LM's schedule, which has no idle slots.
  const bool is_pytorchs = shape.group_size == 0 && !shape.extra_warmup;
  return interleaved_1f1b_row(shape, rank, shape.extra_warmup, is_pytorchs);
}

constexpr Constraint kConstraints[] = {kSameNumberOfStages, kWholeRounds, kGroups};
constexpr std::string_view kAliases[] = {"ScheduleInterleaved1F1B"};

}  // namespace

const ScheduleSpec kInterleaved1F1B = {
    .name = "Interleaved1F1B",
    .aliases = kAliases,
    .source = "arXiv 2104.04473",
    .pattern = Pattern::kLoop,
    .default_stages_per_rank = 2,
    .splits_backward = false,
    .bubble = "(P-1)(F+B)",
    .bubble_where = "M >= P or V = 1",
    .memory = "min(V M, (V-1)R + 2(P-1-r) + 1), R = M div max(1, M div P)",
    .constraints = kConstraints,
    .options = kInterleavedOptions,
    .make_row = make_row,
};

}  // namespace pipewright::schedules
