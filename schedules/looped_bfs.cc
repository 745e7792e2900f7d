#include "pipewright/schedules/looped_bfs.h"

#include "pipewright/schedules/constraints.h"

namespace pipewright::schedules {
namespace {

ir::Row make_row(const Shape& shape, int rank) {
  ir::Row row(static_cast<size_t>(rank));
  for (int stage = rank; stage < shape.stages; stage += shape.ranks) {
    for (int microbatch = 0; microbatch < shape.microbatches; ++microbatch) {
      row.emplace_back(ir::ActionKind::kForward, stage, microbatch);
    }
  }
  row.resize(row.size() + 2 * static_cast<size_t>(shape.ranks - 1 - rank));
  for (int stage = shape.stages - shape.ranks + rank; stage >= 0; stage -= shape.ranks) {
    for (int microbatch = shape.microbatches - 1; microbatch >= 0; --microbatch) {
      row.emplace_back(ir::ActionKind::kBackward, stage, microbatch);
    }
  }
  return row;
}

constexpr Constraint kConstraints[] = {kSameNumberOfStages};
constexpr std::string_view kAliases[] = {"ScheduleLoopedBFS"};

}  // namespace

const ScheduleSpec kLoopedBfs = {
    .name = "LoopedBFS",
    .aliases = kAliases,
    .source = "arXiv 2211.05953",
    .pattern = Pattern::kLoop,
    .default_stages_per_rank = 2,
    .splits_backward = false,
    .bubble = "(P-1)(F+B)",
    .bubble_where = "M >= P or V = 1",
    .memory = "V M",
    .constraints = kConstraints,
    .make_row = make_row,
};

}  // namespace pipewright::schedules
