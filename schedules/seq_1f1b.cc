#include "pipewright/schedules/seq_1f1b.h"

#include "pipewright/schedules/constraints.h"
#include "pipewright/schedules/interleaved_1f1b.h"
#include "pipewright/schedules/warm_up_and_steady.h"

namespace pipewright::schedules {
namespace {

ir::Row make_row(const Shape& shape, int rank) {
  return warm_up_and_steady(shape, rank, shape.ranks - 1 - rank + shape.slices - 1);
}

ir::Row make_interleaved_row(const Shape& shape, int rank) {
  return interleaved_1f1b_row(shape, rank, shape.slices - 1, /*has_idle=*/false);
}

constexpr Constraint kConstraints[] = {kOneStageARank};
constexpr Constraint kInterleavedConstraints[] = {
    kSameNumberOfStages,
    {"all slices are a multiple of max(1, all slices div ranks)",
     "all rounds have the same number of slices", kWholeRounds.holds},
    {"rounds, of so many slices, have whole microbatches",
     "the slices of a microbatch go through a stage one after the other",
     [](const Shape& shape) { return microbatches_per_round(shape) % shape.slices == 0; }}};

}  // namespace

const ScheduleSpec kSeq1F1B = {
    .name = "Seq1F1B",
    .aliases = {},
    .source = "arXiv 2406.03488",
    .pattern = Pattern::kLoop,
    .default_stages_per_rank = 1,
    .splits_backward = false,
    .bubble = "(P-1)(F+B)/K",
    .memory = "min(M K, P-r+K-1)/K",
    .constraints = kConstraints,
    .options = kSlicesOption,
    .make_row = make_row,
};

const ScheduleSpec kSeq1F1BI = {
    .name = "Seq1F1B-I",
    .aliases = {},
    .source = "arXiv 2406.03488",
    .pattern = Pattern::kLoop,
    .default_stages_per_rank = 2,
    .splits_backward = false,
    .bubble = "(P-1)(F+B)/K",
    .bubble_where = "M K >= P or V = 1",
    .memory = "min(V M K, (V-1)R + 2(P-1-r) + K)/K, R = M K div max(1, M K div P)",
    .constraints = kInterleavedConstraints,
    .options = kSlicesOption,
    .make_row = make_interleaved_row,
};

}  // namespace pipewright::schedules
