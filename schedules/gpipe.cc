#include "pipewright/schedules/gpipe.h"

#include "pipewright/ir/dependencies.h"
#include "pipewright/schedules/constraints.h"

namespace pipewright::schedules {
namespace {

ir::Row make_row(const Shape& shape, int rank) {
  ir::Row row(2 * static_cast<size_t>(shape.microbatches));
  ir::Action* next = row.data();
  for (const ir::ActionKind kind : {ir::ActionKind::kForward, ir::ActionKind::kBackward}) {
    for (int index = 0; index < shape.microbatches; ++index) {
      const bool is_forward = kind == ir::ActionKind::kForward;
      *next++ = {kind, rank, is_forward ? index : ir::backward_at(index, shape.slices)};
    }
  }
  return row;
}

constexpr Constraint kConstraints[] = {kOneStageARank};
constexpr std::string_view kAliases[] = {"ScheduleGPipe"};

}  // namespace

const ScheduleSpec kGPipe = {
    .name = "GPipe",
    .aliases = kAliases,
    .source = "arXiv 1811.06965",
    .pattern = Pattern::kLoop,
    .default_stages_per_rank = 1,
    .splits_backward = false,
    .bubble = "(P-1)(F+B)/K",
    .memory = "M",
    .constraints = kConstraints,
    .options = kSlicesOption,
    .make_row = make_row,
};

}  // namespace pipewright::schedules
